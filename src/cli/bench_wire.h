// What `bench wire` measures, on the processor and on a card.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "comm/wire.h"

namespace onefold::cli {

struct WireBench {
  std::string size = "64MiB", device = "cpu";
  int threads = 1, repeats = 7;
  int64_t block = 256;
  double density = 0.01;
  bool stochastic = false, json = false;
};

// Seconds of each repeat, and of plain reads and writes in its place.
struct Timed {
  std::vector<double> seconds, plain;

  double fraction() const;
};

struct WireRow {
  WireFormat format;
  int64_t packet_bytes = 0;
  Timed pack, keep, unpack;  // keep: packing, and what the packet lacks
};

std::vector<WireFormat> benched_formats(const WireBench& b);
// Prints a row of the table of so many elements in all, or adds it to the results.
void add_row(const WireRow& row, int64_t row_elems, double elems, bool json, Json& results);
void print_heading();

// On a card, in its memory: against copies of as many bytes.
int run_wire_on_card(const WireBench& b, int64_t elems);

}  // namespace onefold::cli
