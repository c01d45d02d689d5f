"""runtime/backends/webgpu."""
