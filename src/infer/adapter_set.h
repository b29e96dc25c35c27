// Several adapters mounted on one base, chosen per request by name, added and removed without touching the base.
//
//   AdapterSet adapters(pool, *model);
//   adapters.mount("chunk", "out/best");
//   generator.generate(request, *adapters.get("chunk"));   adapters.get("") is the base alone
//
// Any threads may call at once, also while texts are generated. An adapter lives until its name is given up and nobody holds what get() returned:
// a call of generate() with *get() ends on the adapter that it began with.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model/dora.h"

namespace sluice {

class AdapterSet {
 public:
  AdapterSet(ThreadPool& pool, const Model& model) : pool_(pool), model_(model) {}

  // Reads an adapter in any format of model/adapter_file.h. Replaces an adapter of that name. Throws Error(bad_file), leaving what was mounted.
  // Returns one line for the user when the adapter has no effect.
  std::string mount(const std::string& name, const std::string& folder);
  void unmount(const std::string& name);  // nothing when it is not mounted
  // The empty name is the base. Throws Error(bad_config) naming those that are mounted.
  std::shared_ptr<const Adapter> get(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  ThreadPool& pool_;
  const Model& model_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Adapter>> adapters_;
};

}  // namespace sluice
