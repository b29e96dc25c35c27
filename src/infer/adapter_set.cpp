#include "infer/adapter_set.h"

#include <fmt/format.h>

#include "infer/device_turn.h"

namespace sluice {

namespace {

struct Mounted {
  LoadedAdapter loaded;
  Adapter view;
};

}  // namespace

std::string AdapterSet::mount(const std::string& name, const std::string& folder) {
  check(!name.empty(), ErrorCode::bad_config, "an adapter needs a name; the empty one is the base");
  const auto mounted = std::make_shared<Mounted>();
  mounted->loaded = load_adapter(folder, model_.config);
  {
    const auto turn = device_turn(model_.device);
    prepare_adapter(pool_, model_, mounted->loaded);
  }
  mounted->view = mounted->loaded.view();
  std::shared_ptr<const Adapter> adapter(mounted, &mounted->view);
  const std::lock_guard lock(mutex_);
  adapters_[name].swap(adapter);  // the one before goes after the lock
  return mounted->loaded.note;
}

void AdapterSet::unmount(const std::string& name) {
  const std::lock_guard lock(mutex_);
  adapters_.erase(name);
}

std::shared_ptr<const Adapter> AdapterSet::get(const std::string& name) const {
  if (name.empty()) return std::make_shared<const Adapter>();
  {
    const std::lock_guard lock(mutex_);
    const auto found = adapters_.find(name);
    if (found != adapters_.end()) return found->second;
  }
  const std::vector<std::string> all = names();
  throw Error(ErrorCode::bad_config, fmt::format("no adapter '{}' is mounted; there are: {}", name,
                                                 all.empty() ? "none" : fmt::format("{}", fmt::join(all, ", "))));
}

std::vector<std::string> AdapterSet::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [name, adapter] : adapters_) all.push_back(name);
  return all;
}

}  // namespace sluice
