// Everything an embedding program needs: #include <sluice/sluice.h> after find_package(sluice). examples/embed/ shows it.
#pragma once

#include "core/error.h"
#include "data/model_text.h"
#include "infer/adapter_set.h"
#include "infer/generate.h"
#include "model/model.h"
#include "ops/adamw/adamw.h"
#include "ops/common/copy.h"
#include "train/planner.h"
#include "train/trainer.h"
