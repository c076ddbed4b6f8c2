#include "io/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "error_text.h"

namespace onefold {
namespace {

TEST(Metrics, OneObjectPerLineVisibleAtOnce) {
  const std::string path = testing::TempDir() + "onefold_metrics.jsonl";
  MetricsWriter writer(path, MetricsWriter::Mode::fresh);
  writer.write({{"step", 1}, {"loss", 2.5}});
  writer.write({{"step", 2}, {"loss", std::nan("")}, {"note", "two\nlines"}});
  EXPECT_EQ(read_file(path),
            "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null,\"note\":\"two\\nlines\"}\n");
  std::filesystem::remove(path);
}

TEST(Metrics, AppendingStartsANewLineAfterABrokenOne) {
  const std::string path = testing::TempDir() + "onefold_metrics_append.jsonl";
  write_file(path, "{\"step\":1}\n{\"st");
  MetricsWriter(path, MetricsWriter::Mode::append).write({{"step", 2}});
  MetricsWriter(path, MetricsWriter::Mode::append).write({{"step", 3}});
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"st\n{\"step\":2}\n{\"step\":3}\n");
  MetricsWriter(path, MetricsWriter::Mode::fresh).write({{"step", 0}});
  EXPECT_EQ(read_file(path), "{\"step\":0}\n");
  std::filesystem::remove(path);
}

TEST(Metrics, AFolderThatIsNotThereIsNamed) {
  EXPECT_ERROR(MetricsWriter("/no/such/folder/m.jsonl", MetricsWriter::Mode::fresh),
               "cannot open /no/such/folder/m.jsonl");
}

}  // namespace
}  // namespace onefold
