// ALiBi is there for one device.
#include <gtest/gtest.h>

#include "config/config.h"
#include "error_text.h"

namespace onefold {
namespace {

TEST(AlibiKey, IsRefusedForOtherDevicesByName) {
  Json root = {{"model", "bloom-tiny"}, {"train_batch_size", 1}};
  EXPECT_NO_THROW(Config::from_json(root));
  root["run"]["device"] = "cuda";
  EXPECT_ERROR(Config::from_json(root), "model.positions", "alibi", "device cpu alone yet",
               "not for cuda");
  root["model"] = "gpt2-tiny";
  EXPECT_NO_THROW(Config::from_json(root));
}

}  // namespace
}  // namespace onefold
