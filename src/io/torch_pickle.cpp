#include "io/torch_pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"

namespace onefold {
namespace {

constexpr size_t kMostValues = size_t{1} << 21;  // of one description
constexpr size_t kMostNameBytes = size_t{1} << 26;
constexpr size_t kLongestName = 4096;
constexpr int kDeepest = 64;

struct Value;
using Items = std::vector<Value>;

struct Value {
  enum class Type {
    kNone,
    kMark,
    kNumber,  // integers; floats and truth count as 0
    kText,
    kList,    // and tuples
    kDict,    // keys and values in turn
    kGlobal,  // text is "module name"
    kStorage,
    kTensor
  };
  Type type = Type::kNone;
  int64_t number = 0;
  std::string_view text = {};  // the program's or the machine's: a recalled value is no copy of it
  Items* items = nullptr;      // the machine's: a list may hold itself
  std::shared_ptr<TorchTensor> tensor = nullptr;  // of a storage too
};

// {what PyTorch calls a storage's type, what safetensors calls it}
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kStorages = {
    {{"FloatStorage", "F32"},
     {"DoubleStorage", "F64"},
     {"HalfStorage", "F16"},
     {"BFloat16Storage", "BF16"},
     {"LongStorage", "I64"},
     {"IntStorage", "I32"},
     {"ShortStorage", "I16"},
     {"CharStorage", "I8"},
     {"ByteStorage", "U8"},
     {"BoolStorage", "BOOL"},
     {"Float8_e4m3fnStorage", "F8_E4M3"},
     {"Float8_e5m2Storage", "F8_E5M2"}}};

std::string_view dtype_of_storage(std::string_view global) {
  constexpr std::string_view kModule = "torch ";
  if (!global.starts_with(kModule)) return {};
  global.remove_prefix(kModule.size());
  for (const auto& [name, dtype] : kStorages)
    if (global == name) return dtype;
  return {};
}

class Machine {
 public:
  Machine(std::string_view program, const std::string& source)
      : program_(program), source_(source) {}

  Value run() {
    while (true) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') return pop();
      step(code);
      if (stack_.size() > kMostValues || memo_.size() > kMostValues || made_ > kMostValues)
        fail("describes more values than a model has");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    user_error(
        "{}: {}. Only plain dictionaries of tensors are read; load the file in PyTorch and save it "
        "as safetensors",
        source_, what);
  }

  std::string_view take(size_t bytes) {
    if (bytes > program_.size() - at_) fail("the description of its tensors is cut short");
    const std::string_view taken = program_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  uint64_t unsigned_of(size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, take(bytes).data(), bytes);
    return value;
  }
  std::string_view line() {
    const size_t end = program_.find('\n', at_);
    if (end == std::string_view::npos) fail("the description of its tensors is cut short");
    const std::string_view text = take(end - at_);
    take(1);
    return text;
  }

  void push(Value value) {
    ++made_;
    stack_.push_back(std::move(value));
  }
  Value pop() {
    if (stack_.empty()) fail("the description of its tensors takes what is not there");
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  Value& top() {
    if (stack_.empty()) fail("the description of its tensors takes what is not there");
    return stack_.back();
  }
  // What was pushed since the last mark, which goes too.
  Items pop_to_mark() {
    const auto mark = std::find_if(stack_.rbegin(), stack_.rend(), [](const Value& value) {
      return value.type == Value::Type::kMark;
    });
    if (mark == stack_.rend()) fail("the description of its tensors takes what is not there");
    Items items(std::make_move_iterator(mark.base()), std::make_move_iterator(stack_.end()));
    stack_.erase(mark.base() - 1, stack_.end());
    return items;
  }

  Value with_items(Value::Type type, Items items) {
    items_.push_back(std::move(items));
    return {.type = type, .items = &items_.back()};
  }
  Value list_of(Items items) { return with_items(Value::Type::kList, std::move(items)); }
  Value dict() { return with_items(Value::Type::kDict, {}); }
  static Value number_of(int64_t number) {
    return {.type = Value::Type::kNumber, .number = number};
  }
  static Value text_of(std::string_view text) { return {.type = Value::Type::kText, .text = text}; }

  void push_tuple(size_t count) {
    Items items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push(list_of(std::move(items)));
  }

  void step(unsigned char code) {
    switch (code) {
      case 0x80:  // PROTO
        if (const uint64_t version = unsigned_of(1); version < 2 || version > 5)
          fail(fmt::format("is a pickle of version {}", version));
        return;
      case 0x95:  // FRAME
        return static_cast<void>(take(8));
      case '(':
        return push({.type = Value::Type::kMark});
      case 'N':
        return push({});
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        return push(number_of(0));
      case 'G':  // BINFLOAT
        take(8);
        return push(number_of(0));
      case 'K':
        return push(number_of(static_cast<int64_t>(unsigned_of(1))));
      case 'M':
        return push(number_of(static_cast<int64_t>(unsigned_of(2))));
      case 'J':
        return push(number_of(static_cast<int32_t>(unsigned_of(4))));
      case 0x8A:  // LONG1
        return push(number_of(long_of(unsigned_of(1))));
      case 'X':
        return push(text_of(take(unsigned_of(4))));
      case 0x8C:  // SHORT_BINUNICODE
        return push(text_of(take(unsigned_of(1))));
      case '}':
        return push(dict());
      case ']':
      case ')':
        return push(list_of({}));
      case 't':
        return push(list_of(pop_to_mark()));
      case 0x85:
      case 0x86:
      case 0x87:  // TUPLE1 to TUPLE3
        return push_tuple(code - 0x84u);
      default:
        return step_memory(code);
    }
  }

  // Instructions that name, remember, call and fill.
  void step_memory(unsigned char code) {
    switch (code) {
      case 'q':
        return remember(unsigned_of(1));
      case 'r':
        return remember(unsigned_of(4));
      case 0x94:  // MEMOIZE
        return remember(memo_.size());
      case 'h':
        return recall(unsigned_of(1));
      case 'j':
        return recall(unsigned_of(4));
      case 'c': {
        const std::string_view module = line();
        return push_global(fmt::format("{} {}", module, line()));
      }
      case 0x93: {  // STACK_GLOBAL
        const Value name = pop(), module = pop();
        if (name.type != Value::Type::kText || module.type != Value::Type::kText)
          fail("names something that is no name");
        return push_global(fmt::format("{} {}", module.text, name.text));
      }
      case 'Q':
        return push(storage_of(pop()));
      case 'R': {
        const Value arguments = pop(), callee = pop();
        return push(made_by(callee, arguments));
      }
      case 'b':  // attributes of a dictionary, which say nothing of its tensors
        pop();
        if (top().type != Value::Type::kDict) fail("sets attributes of what is no dictionary");
        return;
      case 's':
      case 'u':
        return set_items(code == 'u');
      case 'a':
      case 'e':
        return append_items(code == 'e');
      default:
        fail(
            fmt::format("the description of its tensors has the instruction 0x{:02x}, which no "
                        "tensor needs",
                        code));
    }
  }

  int64_t long_of(uint64_t bytes) {
    if (bytes > 8) fail("has a number of more than 64 bits");
    const std::string_view digits = take(bytes);
    uint64_t value = !digits.empty() && (digits.back() & 0x80) ? ~uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return static_cast<int64_t>(value);
  }

  void remember(uint64_t place) {
    if (place > kMostValues) fail("remembers more values than a model has");
    memo_[place] = top();
  }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) fail("recalls what it has not remembered");
    push(found->second);
  }

  void push_global(std::string name) {
    static constexpr std::array<std::string_view, 3> kKnown = {"torch._utils _rebuild_tensor_v2",
                                                               "torch._utils _rebuild_parameter",
                                                               "collections OrderedDict"};
    const bool known = std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end();
    if (!known && dtype_of_storage(name).empty()) {
      std::replace(name.begin(), name.end(), ' ', '.');
      fail(fmt::format("holds {}, and not tensors alone", name));
    }
    globals_.push_back(std::move(name));
    push({.type = Value::Type::kGlobal, .text = globals_.back()});
  }

  // ('storage', FloatStorage, '0', 'cpu', 6)
  Value storage_of(const Value& id) const {
    if (id.type != Value::Type::kList || id.items->size() != 5)
      fail("has a storage of another kind");
    const Items& parts = *id.items;
    const bool typed = parts[0].type == Value::Type::kText && parts[0].text == "storage" &&
                       parts[1].type == Value::Type::kGlobal &&
                       parts[2].type == Value::Type::kText &&
                       parts[4].type == Value::Type::kNumber && parts[4].number >= 0;
    const std::string_view dtype = typed ? dtype_of_storage(parts[1].text) : std::string_view();
    if (dtype.empty() || parts[2].text.size() > kLongestName) fail("has a storage of another kind");
    auto tensor = std::make_shared<TorchTensor>();
    tensor->dtype = dtype;
    tensor->storage = parts[2].text;
    tensor->storage_elems = parts[4].number;
    return {.type = Value::Type::kStorage, .tensor = std::move(tensor)};
  }

  std::vector<int64_t> numbers_of(const Value& list) const {
    if (list.type != Value::Type::kList) fail("has a tensor without a shape");
    std::vector<int64_t> numbers;
    for (const Value& value : *list.items) {
      if (value.type != Value::Type::kNumber || value.number < 0)
        fail("has a tensor whose shape is not made of sizes");
      numbers.push_back(value.number);
    }
    return numbers;
  }

  Value made_by(const Value& callee, const Value& arguments) {
    if (callee.type != Value::Type::kGlobal || arguments.type != Value::Type::kList)
      fail("calls what is no name");
    const Items& given = *arguments.items;
    if (callee.text == "collections OrderedDict" && given.empty()) return dict();
    if (callee.text == "torch._utils _rebuild_parameter" && !given.empty() &&
        given[0].type == Value::Type::kTensor)
      return given[0];
    if (callee.text != "torch._utils _rebuild_tensor_v2" || given.size() < 4 ||
        given[0].type != Value::Type::kStorage || given[1].type != Value::Type::kNumber ||
        given[1].number < 0)
      fail("makes something that is no tensor");
    auto tensor = std::make_shared<TorchTensor>(*given[0].tensor);
    tensor->first_elem = given[1].number;
    tensor->shape = numbers_of(given[2]);
    tensor->strides = numbers_of(given[3]);
    if (tensor->shape.size() != tensor->strides.size())
      fail("has a tensor with more sizes than strides");
    return {.type = Value::Type::kTensor, .tensor = std::move(tensor)};
  }

  void set_items(bool many) {
    Items items;
    if (many) {
      items = pop_to_mark();
    } else {
      Value value = pop(), key = pop();
      items.push_back(std::move(key));
      items.push_back(std::move(value));
    }
    if (top().type != Value::Type::kDict || items.size() % 2 != 0)
      fail("fills what is no dictionary");
    std::move(items.begin(), items.end(), std::back_inserter(*top().items));
  }
  void append_items(bool many) {
    Items items;
    if (many)
      items = pop_to_mark();
    else
      items.push_back(pop());
    if (top().type != Value::Type::kList) fail("fills what is no list");
    std::move(items.begin(), items.end(), std::back_inserter(*top().items));
  }

  const std::string_view program_;
  const std::string& source_;
  size_t at_ = 0, made_ = 0;
  std::vector<Value> stack_;
  std::deque<Items> items_;
  std::deque<std::string> globals_;
  std::map<uint64_t, Value> memo_;
};

// A dictionary may hold itself, and the same name many times; so depth, number and names are
// limited.
struct Visited {
  size_t values = 0, name_bytes = 0;
};

void collect(const Value& dict, const std::string& prefix, int depth, const std::string& source,
             Visited& visited, std::vector<TorchTensor>& tensors) {
  if (depth > kDeepest)
    user_error("{}: its dictionaries are nested more than {} deep", source, kDeepest);
  for (size_t i = 0; i + 1 < dict.items->size(); i += 2) {
    if (++visited.values > kMostValues || visited.name_bytes > kMostNameBytes)
      user_error("{}: it describes more values than a model has", source);
    const Value &key = (*dict.items)[i], &value = (*dict.items)[i + 1];
    if (key.type != Value::Type::kText) continue;
    const std::string name = fmt::format("{}{}{}", prefix, prefix.empty() ? "" : ".", key.text);
    if (name.size() > kLongestName)
      user_error("{}: it has a name of {} bytes", source, name.size());
    visited.name_bytes += name.size();
    if (value.type == Value::Type::kTensor) {
      tensors.push_back(*value.tensor);
      tensors.back().name = name;
    } else if (value.type == Value::Type::kDict) {
      collect(value, name, depth + 1, source, visited, tensors);
    }
  }
}

}  // namespace

std::vector<TorchTensor> read_torch_pickle(std::string_view pickle, const std::string& source) {
  Machine machine(pickle, source);
  const Value root = machine.run();
  if (root.type != Value::Type::kDict)
    user_error("{}: it holds no dictionary of tensors, which is what a model's weights are",
               source);
  std::vector<TorchTensor> tensors;
  Visited visited;
  collect(root, "", 0, source, visited, tensors);
  return tensors;
}

}  // namespace onefold
