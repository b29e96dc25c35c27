// A page for a browser that shows rows as they are trained on: one file that needs nothing else.
//
//   PreviewPage page("rows.html", "SmolLM2", tokenizer);
//   page.add(sample, "row 3");
//   page.finish(report);                        // the file is there whole, or not at all
#pragma once

#include <string>

#include "data/dataset.h"
#include "io/atomic_file.h"

namespace sluice {

class PreviewPage {
 public:
  PreviewPage(const std::string& path, const std::string& model, const Tokenizer& tokenizer);
  void add(const Sample& sample, const std::string& title);
  void finish(const DataReport& report);

 private:
  const Tokenizer& tokenizer_;
  AtomicFile file_;
};

}  // namespace sluice
