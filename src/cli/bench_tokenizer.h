// onefold bench tokenizer: how fast text becomes tokens, on one core.
#pragma once

#include "cli/cli.h"

namespace onefold::cli {

void add_bench_tokenizer(CLI::App& bench, Run& run);

}  // namespace onefold::cli
