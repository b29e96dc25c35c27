// The host's view of a float tensor: the tensor's own memory on the CPU, elsewhere a copy of it.
//
//   HostFloats parameters(ctx, p);            // a copy is made, once the device has come here
//   save(parameters.data());
//   HostFloats moments(ctx, m, HostFloats::Content::unread);  load(moments.data());  moments.write_back();
#pragma once

#include <vector>

#include "ops/common/copy.h"

namespace sluice {

class HostFloats {
 public:
  enum class Content : uint8_t { copied, unread };

  HostFloats(Context& ctx, Tensor tensor, Content content = Content::copied) : ctx_(ctx), tensor_(tensor) {
    if (ctx.device.type == DeviceType::cpu) return;
    copy_.resize(static_cast<size_t>(tensor.numel()));
    if (content == Content::copied) copy_to_host(ctx, {.tensor = tensor, .host = copy_.data()});
  }

  float* data() { return ctx_.device.type == DeviceType::cpu ? tensor_.as<float>() : copy_.data(); }
  // What was written to data() becomes the tensor's.
  void write_back() {
    if (ctx_.device.type != DeviceType::cpu) copy_from_host(ctx_, {.host = copy_.data(), .tensor = tensor_});
  }

 private:
  Context& ctx_;
  Tensor tensor_;
  std::vector<float> copy_;
};

}  // namespace sluice
