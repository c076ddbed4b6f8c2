#include "io/trace_file.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"

namespace onefold {

std::string trace_to_text(const RankTrace& trace) {
  Json lanes = Json::array();
  for (const RankTrace::Lane& lane : trace.lanes) {
    Json spans = Json::array();
    for (const RankTrace::Span& span : lane.spans)
      spans.push_back({span.name, span.begin_seconds, span.seconds, span.bytes});
    lanes.push_back({{"name", lane.name}, {"spans", spans}});
  }
  return Json{{"rank", trace.rank}, {"lanes", lanes}}.dump();
}

RankTrace trace_from_text(const std::string& text) {
  const Json json = parse_json(text, "trace");
  RankTrace trace{.rank = json.at("rank").get<int>()};
  for (const Json& lane : json.at("lanes")) {
    RankTrace::Lane& to = trace.lanes.emplace_back(RankTrace::Lane{lane.at("name"), {}});
    for (const Json& span : lane.at("spans"))
      to.spans.push_back({span.at(0), span.at(1), span.at(2), span.at(3)});
  }
  return trace;
}

void write_trace(const std::string& path, const std::vector<RankTrace>& ranks) {
  OutputFile file(path);
  std::string separator = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  const auto write = [&](const Json& event) {
    const std::string text = separator + event.dump();
    file.append(std::as_bytes(std::span(text)));
    separator = ",\n";
  };
  const auto name = [&](const char* what, int rank, size_t lane, const std::string& text) {
    write({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", text}}}});
  };
  for (const RankTrace& trace : ranks) {
    name("process_name", trace.rank, 0, fmt::format("rank {}", trace.rank));
    for (size_t lane = 0; lane < trace.lanes.size(); ++lane) {
      name("thread_name", trace.rank, lane, trace.lanes[lane].name);
      for (const RankTrace::Span& span : trace.lanes[lane].spans) {
        Json event = {{"ph", "X"},
                      {"name", span.name},
                      {"pid", trace.rank},
                      {"tid", lane},
                      {"ts", span.begin_seconds * 1e6},
                      {"dur", span.seconds * 1e6}};
        if (span.bytes > 0) event["args"] = {{"bytes", span.bytes}};
        write(event);
      }
    }
  }
  const std::string end = "\n]}\n";
  file.append(std::as_bytes(std::span(end)));
  file.commit();
}

}  // namespace onefold
