// The closing table of communication: per collective how often, how much, how fast, and how much of
// it was hidden behind computation. And a card's memory, as its driver sees it.
#pragma once

#include "base/json.h"
#include "engine/engine.h"

namespace onefold {

// Of the engine's rank, over all its steps; "" for a single rank.
std::string traffic_table(const Engine& engine);
Json traffic_json(const Engine& engine);

// A line: what is in use, of it what the ledgers' memory is cut from, and the rest; "" without a
// card.
std::string driver_text(const Device::DriverMemory& memory);

}  // namespace onefold
