// WebGPU as `browser.py` drives it: objects stay here and Python holds their numbers, because a number crosses between
// Python and JavaScript in a fraction of the time that an object takes. A replayed program is one call.

/** Open the first adapter of this browser, or say why there is none. */
export async function adapter() {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) {
    throw new Error(
      globalThis.isSecureContext === false
        ? "this page has no WebGPU because its address is not secure: open it over https, or from 127.0.0.1"
        : "this browser has no WebGPU (navigator.gpu is missing)",
    );
  }
  const found = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!found) throw new Error("this browser has WebGPU, but found no adapter for it (see chrome://gpu)");
  return found;
}

/** What Python asks of an adapter: its names, features and limits. */
export function describe(found) {
  const info = found.info ?? {};
  const limits = {};
  for (const name in found.limits) limits[name] = Number(found.limits[name]);
  const fallback = Boolean(info.isFallbackAdapter ?? found.isFallbackAdapter);
  const named = info.description || info.device || [info.vendor, info.architecture].filter(Boolean).join(" ");
  return JSON.stringify({
    name: named || "WebGPU adapter", vendor: info.vendor ?? "", fallback, features: [...found.features], limits,
  });
}

/** Open a device with the given features and limits; JSON: {requiredFeatures, requiredLimits}. */
export async function open(found, wanted) {
  return new Engine(await found.requestDevice(JSON.parse(wanted)));
}

class Engine {
  constructor(device) {
    this.device = device;
    this.queue = device.queue;
    // Every object by number; 0 is none.
    this.things = [null];
    this.unused = [];
    this.mapped = new Map();
    // What the device reported since Python asked last: [kind, message].
    this.problem = null;
    device.addEventListener("uncapturederror", (event) => {
      event.preventDefault();
      this.note(event.error);
    });
    device.lost.then((info) => {
      this.problem = ["DeviceLost", `device is lost: ${info.message || info.reason}`];
      this.gone = true;
    });
  }

  note(error) {
    const kind = { GPUOutOfMemoryError: "OutOfMemory", GPUInternalError: "Internal" }[error.constructor.name];
    this.problem ??= [kind ?? "Validation", error.message];
  }

  take() {
    const found = this.problem;
    if (!this.gone) this.problem = null;
    return found ? found.join("\n") : "";
  }

  keep(thing) {
    const number = this.unused.length ? this.unused.pop() : this.things.length;
    this.things[number] = thing;
    return number;
  }

  drop(number) {
    this.things[number] = null;
    this.unused.push(number);
  }

  features() {
    return [...this.device.features].join(" ");
  }

  limits() {
    const out = {};
    for (const name in this.device.limits) out[name] = Number(this.device.limits[name]);
    return JSON.stringify(out);
  }

  // -- objects

  buffer(size, usage) {
    return this.keep(this.device.createBuffer({ size, usage }));
  }

  freeBuffer(number) {
    this.things[number].destroy();
    this.drop(number);
  }

  module(code) {
    return this.keep(this.device.createShaderModule({ code }));
  }

  groupLayout(types) {
    const entries = types.split(" ").filter(Boolean).map((type, binding) => ({ binding, visibility: 4, buffer: { type } }));
    return this.keep(this.device.createBindGroupLayout({ entries }));
  }

  pipelineLayout(group) {
    return this.keep(this.device.createPipelineLayout({ bindGroupLayouts: [this.things[group]] }));
  }

  pipeline(layout, module, entryPoint) {
    const compute = { module: this.things[module], entryPoint };
    return this.keep(this.device.createComputePipeline({ layout: this.things[layout], compute }));
  }

  /** Bind (buffer, offset, size) triples in order. */
  group(layout, ...bindings) {
    const entries = [];
    for (let i = 0; i < bindings.length; i += 3) {
      const resource = { buffer: this.things[bindings[i]], offset: bindings[i + 1], size: bindings[i + 2] };
      entries.push({ binding: i / 3, resource });
    }
    return this.keep(this.device.createBindGroup({ layout: this.things[layout], entries }));
  }

  // -- the queue

  write(buffer, offset, data) {
    const bytes = data.getBuffer("u8");
    try {
      this.queue.writeBuffer(this.things[buffer], offset, bytes.data);
    } finally {
      bytes.release();
    }
  }

  encoder() {
    return this.keep(this.device.createCommandEncoder());
  }

  beginPass(encoder) {
    return this.keep(this.things[encoder].beginComputePass());
  }

  setPipeline(pass, pipeline) {
    this.things[pass].setPipeline(this.things[pipeline]);
  }

  setGroup(pass, group) {
    this.things[pass].setBindGroup(0, this.things[group]);
  }

  dispatch(pass, x, y, z) {
    this.things[pass].dispatchWorkgroups(x, y, z);
  }

  endPass(pass) {
    this.things[pass].end();
    this.drop(pass);
  }

  copy(encoder, source, sourceOffset, target, targetOffset, size) {
    this.things[encoder].copyBufferToBuffer(this.things[source], sourceOffset, this.things[target], targetOffset, size);
  }

  clear(encoder, buffer, offset, size) {
    this.things[encoder].clearBuffer(this.things[buffer], offset, size);
  }

  finish(encoder) {
    const commands = this.things[encoder].finish();
    this.drop(encoder);
    return this.keep(commands);
  }

  submit(commands) {
    this.queue.submit([this.things[commands]]);
    this.drop(commands);
  }

  done() {
    return this.queue.onSubmittedWorkDone();
  }

  // -- replay: the segments of a plan, then one call for all of it

  /** Rows of five words (pipeline or 0, group, grid) and copies of five (buffer and first byte of
   * source and target, bytes), as text. */
  plan(text) {
    const segments = JSON.parse(text).map(([rows, copies]) => ({
      rows: rows.map(([pipeline, group, ...grid]) => [this.things[pipeline], this.things[group], ...grid]),
      copies: copies.map(([source, at, target, to, size]) => [this.things[source], at, this.things[target], to, size]),
    }));
    return this.keep(segments);
  }

  replay(plan) {
    const encoder = this.device.createCommandEncoder();
    for (const { rows, copies } of this.things[plan]) {
      if (rows.length) {
        const pass = encoder.beginComputePass();
        for (const [pipeline, group, x, y, z] of rows) {
          if (pipeline) pass.setPipeline(pipeline);
          pass.setBindGroup(0, group);
          pass.dispatchWorkgroups(x, y, z);
        }
        pass.end();
      }
      for (const copy of copies) encoder.copyBufferToBuffer(...copy);
    }
    this.queue.submit([encoder.finish()]);
  }

  // -- reading

  /** Ask for a buffer to be mapped; resolves to "" or to what went wrong. */
  async map(buffer, size) {
    try {
      const found = this.things[buffer];
      await found.mapAsync(1, 0, size);
      this.mapped.set(buffer, new Uint8Array(found.getMappedRange(0, size)));
      return "";
    } catch (error) {
      return String(error.message ?? error);
    }
  }

  bytes(buffer, start, size) {
    return this.mapped.get(buffer).subarray(start, start + size);
  }

  unmap(buffer) {
    this.mapped.delete(buffer);
    this.things[buffer].unmap();
  }

  // -- errors of what is made at compile time

  watch() {
    this.device.pushErrorScope("validation");
    this.device.pushErrorScope("internal");
    this.device.pushErrorScope("out-of-memory");
  }

  /** End `watch`; resolves to "" or to "kind\nmessage". */
  async watched() {
    const found = await Promise.all([0, 1, 2].map(() => this.device.popErrorScope()));
    const names = ["OutOfMemory", "Internal", "Validation"];
    const at = found.findIndex(Boolean);
    return at < 0 ? "" : `${names[at]}\n${found[at].message}`;
  }

  /** What the shader compiler says of a module, with its lines. */
  async messages(module) {
    const info = await this.things[module].getCompilationInfo();
    return info.messages.map((m) => `:${m.lineNum}:${m.linePos} ${m.type}: ${m.message}`).join("\n");
  }

  destroy() {
    this.device.destroy();
  }
}
