#include "infer/adapter_set.h"

#include <fmt/format.h>

namespace sluice {

std::string AdapterSet::mount(const std::string& name, const std::string& folder) {
  check(!name.empty(), ErrorCode::bad_config, "an adapter needs a name; the empty one is the base");
  auto loaded = std::make_unique<LoadedAdapter>(load_adapter(folder, model_.config));
  prepare_adapter(pool_, model_, *loaded);
  std::string note = loaded->note;
  adapters_[name] = std::move(loaded);
  return note;
}

void AdapterSet::unmount(const std::string& name) { adapters_.erase(name); }

Adapter AdapterSet::get(const std::string& name) const {
  if (name.empty()) return {};
  const auto found = adapters_.find(name);
  check(found != adapters_.end(), ErrorCode::bad_config,
        fmt::format("no adapter '{}' is mounted; there are: {}", name,
                    adapters_.empty() ? "none" : fmt::format("{}", fmt::join(names(), ", "))));
  return found->second->view();
}

std::vector<std::string> AdapterSet::names() const {
  std::vector<std::string> all;
  for (const auto& [name, adapter] : adapters_) all.push_back(name);
  return all;
}

}  // namespace sluice
