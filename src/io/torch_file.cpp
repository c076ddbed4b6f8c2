#include "io/torch_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "base/checked.h"
#include "base/error.h"
#include "io/crc32.h"
#include "io/torch_pickle.h"

namespace onefold {
namespace {

// Records of a zip archive: their first four bytes, and how long they are without what varies.
constexpr uint64_t kEnd = 0x06054b50, kEnd64Locator = 0x07064b50, kEnd64 = 0x06064b50,
                   kMember = 0x02014b50, kLocal = 0x04034b50;
constexpr size_t kEndBytes = 22, kEnd64LocatorBytes = 20, kEnd64Bytes = 56, kMemberBytes = 46,
                 kLocalBytes = 30;
constexpr size_t kMostComment = 65535;
constexpr size_t kMostMembers = size_t{1} << 20;
constexpr size_t kCheckedBytes = size_t{4} << 20;  // by one thread at a time

}  // namespace

TorchFile::TorchFile(const std::string& path) : file_(path) {
  read_directory();
  read_tensors();
}

void TorchFile::fail(const std::string& message) const { user_error("{}: {}", path(), message); }

uint64_t TorchFile::number_at(size_t at, size_t bytes) const {
  const auto all = file_.bytes();
  if (at > all.size() || bytes > all.size() - at) fail("the archive is cut short");
  uint64_t value = 0;
  std::memcpy(&value, all.data() + at, bytes);
  return value;
}

void TorchFile::read_directory() {
  const size_t size = file_.bytes().size();
  if (size < kEndBytes || number_at(0, 4) != kLocal)
    fail(
        "it is not an archive of torch.save as PyTorch has written them since 1.6; load it in "
        "PyTorch and save it as safetensors");
  size_t end = size - kEndBytes;
  const size_t first = end > kMostComment ? end - kMostComment : 0;
  while (end > first && number_at(end, 4) != kEnd) --end;
  if (number_at(end, 4) != kEnd) fail("the archive is cut short: it has no directory");
  uint64_t count = number_at(end + 10, 2), at = number_at(end + 16, 4);
  // Archives beyond 4 GiB have a second record with wider numbers.
  if (end >= kEnd64LocatorBytes && number_at(end - kEnd64LocatorBytes, 4) == kEnd64Locator) {
    const uint64_t wide = number_at(end - kEnd64LocatorBytes + 8, 8);
    if (wide > size - kEnd64Bytes || number_at(wide, 4) != kEnd64)
      fail("the archive's directory is damaged");
    count = number_at(wide + 32, 8);
    at = number_at(wide + 48, 8);
  }
  if (count > kMostMembers) fail("the archive has too many members");
  for (uint64_t i = 0; i < count; ++i) {
    size_t next = 0;
    read_member(at, next);
    at = next;
  }
}

void TorchFile::read_member(size_t at, size_t& next) {
  if (number_at(at, 4) != kMember) fail("the archive's directory is damaged");
  const uint64_t method = number_at(at + 10, 2), name_bytes = number_at(at + 28, 2),
                 extra_bytes = number_at(at + 30, 2), comment_bytes = number_at(at + 32, 2);
  uint64_t stored = number_at(at + 20, 4), bytes = number_at(at + 24, 4),
           local = number_at(at + 42, 4);
  next = at + kMemberBytes + name_bytes + extra_bytes + comment_bytes;
  number_at(next, 0);
  const std::string name(reinterpret_cast<const char*>(file_.bytes().data()) + at + kMemberBytes,
                         name_bytes);
  // The wide numbers, in this order, of those that the plain ones have no room for.
  for (size_t extra = at + kMemberBytes + name_bytes; extra + 4 <= next - comment_bytes;) {
    const uint64_t id = number_at(extra, 2), length = number_at(extra + 2, 2);
    size_t field = extra + 4;
    for (uint64_t* const value : {&bytes, &stored, &local}) {
      if (id != 1 || *value != 0xFFFFFFFFu || field + 8 > extra + 4 + length) continue;
      *value = number_at(field, 8);
      field += 8;
    }
    extra += 4 + length;
  }
  if (method != 0 || stored != bytes)
    fail(fmt::format("its member {} is compressed, which torch.save does not do", name));
  const size_t size = file_.bytes().size();
  if (local > size - kLocalBytes || number_at(local, 4) != kLocal)
    fail("the archive's directory is damaged");
  const size_t begin = local + kLocalBytes + number_at(local + 26, 2) + number_at(local + 28, 2);
  if (begin > size || bytes > size - begin) fail(fmt::format("its member {} is cut short", name));
  Member& member = members_[name] = {begin, static_cast<size_t>(bytes),
                                     static_cast<uint32_t>(number_at(at + 16, 4)), name,
                                     std::make_unique<Check>()};
  member.check->sums.resize((member.bytes + kCheckedBytes - 1) / kCheckedBytes);
  constexpr std::string_view kPickle = "/data.pkl";
  if (name.ends_with(kPickle)) root_ = name.substr(0, name.size() - kPickle.size());
}

const TorchFile::Member& TorchFile::member(const std::string& name) const {
  const auto found = members_.find(root_ + "/" + name);
  if (found == members_.end()) fail(fmt::format("the archive has no {}", name));
  return found->second;
}

// torch.save writes 0 where it was told to compute no checksum, as do tools that change archives in
// place: that says nothing. What does not fit is damaged, though PyTorch would read it.
void TorchFile::verify(const Member& member) const {
  if (member.crc == 0 || member.bytes == 0) return;
  Check& check = *member.check;
  const auto block_of = [&](size_t i) {
    const size_t first = i * kCheckedBytes;
    return file_.bytes().subspan(member.begin + first,
                                 std::min(kCheckedBytes, member.bytes - first));
  };
  const size_t blocks = check.sums.size();
  while (check.state == Check::kUnknown) {
    const size_t i = check.next++;
    if (i >= blocks) {
      check.state.wait(Check::kUnknown);
      break;
    }
    check.sums[i] = crc32_of(block_of(i));
    if (++check.done < blocks) continue;
    uLong crc = check.sums[0];
    for (size_t next = 1; next < blocks; ++next)
      crc = ::crc32_combine(crc, check.sums[next], static_cast<z_off_t>(block_of(next).size()));
    check.state = crc == member.crc ? Check::kGood : Check::kBad;
    check.state.notify_all();
  }
  if (check.state == Check::kBad)
    fail(
        fmt::format("its member {} is damaged: its CRC-32 is not the one of the archive's "
                    "directory; copy or download the file again",
                    member.name));
}

void TorchFile::read_tensors() {
  const auto text_of = [&](const Member& at) {
    verify(at);
    return std::string_view(reinterpret_cast<const char*>(file_.bytes().data()) + at.begin,
                            at.bytes);
  };
  if (members_.contains(root_ + "/byteorder") && text_of(member("byteorder")) != "little")
    fail("its numbers are not little-endian");
  std::set<std::string> seen;
  for (const TorchTensor& tensor : read_torch_pickle(text_of(member("data.pkl")), path())) {
    SafetensorsEntry entry{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape};
    if (!seen.insert(tensor.name).second) fail(fmt::format("it has two tensors {}", tensor.name));
    int64_t elems = 1;
    bool dense = true;
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      dense &= tensor.shape[i] == 1 || tensor.strides[i] == elems;
      elems = saturating_product({elems, tensor.shape[i]});
    }
    if (!dense && elems > 0)
      fail(fmt::format("tensor {} is a view that skips elements; call .contiguous() before saving",
                       tensor.name));
    const int64_t width = safetensors_dtype_bytes(tensor.dtype);
    const Member& data = member("data/" + tensor.storage);
    const auto most = static_cast<int64_t>(data.bytes) / width;
    if (tensor.storage_elems > most || elems > most || tensor.first_elem > most - elems)
      fail(fmt::format("tensor {} has {} elements from {} on, and its storage {}", tensor.name,
                       elems, tensor.first_elem, most));
    entry.begin_bytes = static_cast<int64_t>(data.begin) + tensor.first_elem * width;
    entry.end_bytes = entry.begin_bytes + elems * width;
    entries_.push_back(std::move(entry));
    storages_.emplace(static_cast<int64_t>(data.begin), &data);
  }
  if (entries_.empty()) fail("it holds no tensors");
}

std::span<const std::byte> TorchFile::bytes(const SafetensorsEntry& entry) const {
  if (entry.bytes() > 0) verify(*std::prev(storages_.upper_bound(entry.begin_bytes))->second);
  return file_.bytes().subspan(static_cast<size_t>(entry.begin_bytes),
                               static_cast<size_t>(entry.bytes()));
}

}  // namespace onefold
