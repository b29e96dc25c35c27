// For tables that are gathered from and never read whole, such as embeddings without a tied head.
//
//   read_by_row(model.input_table);
#pragma once

#include "core/weight.h"

namespace sluice {

// Tells the system that rows of a mapped weight are read here and there: it fetches the pages that are touched and none around them,
// so the table takes memory for the rows in use only. A hint; never fails.
void read_by_row(const Weight& weight);

}  // namespace sluice
