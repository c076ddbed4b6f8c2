#include "comm/nccl.h"

#include "comm/nccl_channel.h"
#include "comm/nccl_library.h"

namespace onefold {
namespace {

// Of all ranks, or of a group of them, whose control plane is a group of that of all.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclState> state, std::shared_ptr<Communicator> control,
                   RankGroup group)
      : Communicator(control->rank(), control->ranks(), control->options()),
        state_(std::move(state)),
        control_(std::move(control)),
        group_(std::move(group)) {}

  const char* transport() const override { return "nccl"; }
  Place host() const override { return control_->host(); }
  Place place() const override { return control_->place(); }
  int64_t scratch_bytes() const override { return control_->scratch_bytes(); }
  std::unique_ptr<Channel> open(std::string_view name, void* scratch) override {
    return control_->open(name, scratch);
  }
  int64_t device_scratch_bytes() const override { return nccl_scratch_bytes(ranks()); }
  std::unique_ptr<Channel> open_on(RankMemory& memory, std::string_view name,
                                   void* scratch) override {
    return std::make_unique<NcclChannel>(state_, *control_, group_, memory, name, scratch);
  }
  std::unique_ptr<Communicator> group(const RankGroup& members) override {
    return std::make_unique<NcclCommunicator>(state_, control_->group(members), members);
  }
  std::string failure() const override {
    return state_->failed() ? state_->failure() : control_->failure();
  }
  void abort(std::string_view why) noexcept override { state_->fail(std::string(why)); }

 private:
  const std::shared_ptr<NcclState> state_;
  const std::shared_ptr<Communicator> control_;
  const RankGroup group_;
};

}  // namespace

std::shared_ptr<Communicator> over_nccl(std::shared_ptr<Communicator> control,
                                        const NcclOptions& options) {
  const NcclApi* api = options.api;
  if (api == nullptr) {
    const NcclLibrary& library = nccl_library();
    if (library.api == nullptr)
      user_error("{} ranks with a card each need NCCL, and {}; or let them share one card (cuda:N)",
                 control->ranks(), library.problem);
    api = library.api;
  }
  auto state = std::make_shared<NcclState>(control, *api, options.library_sums);
  return std::make_shared<NcclCommunicator>(std::move(state), std::move(control), RankGroup{});
}

}  // namespace onefold
