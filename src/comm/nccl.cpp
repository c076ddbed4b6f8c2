#include "comm/nccl.h"

#include "comm/nccl_channel.h"
#include "comm/nccl_library.h"

namespace onefold {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Communicator> control, const NcclApi& api, bool library_sums)
      : Communicator(control->rank(), control->ranks(), control->options()),
        state_(std::make_shared<NcclState>(std::move(control), api, library_sums)) {}

  const char* transport() const override { return "nccl"; }
  Place host() const override { return control().host(); }
  Place place() const override { return control().place(); }
  int64_t scratch_bytes() const override { return control().scratch_bytes(); }
  std::unique_ptr<Channel> open(std::string_view name, void* scratch) override {
    return control().open(name, scratch);
  }
  int64_t device_scratch_bytes() const override { return nccl_scratch_bytes(ranks()); }
  std::unique_ptr<Channel> open_on(RankMemory& memory, std::string_view name,
                                   void* scratch) override {
    return std::make_unique<NcclChannel>(state_, memory, name, scratch);
  }
  std::string failure() const override {
    return state_->failed() ? state_->failure() : control().failure();
  }
  void abort(std::string_view why) noexcept override { state_->fail(std::string(why)); }

 private:
  Communicator& control() const { return *state_->control; }

  const std::shared_ptr<NcclState> state_;
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
  return std::make_shared<NcclCommunicator>(std::move(control), *api, options.library_sums);
}

}  // namespace onefold
