/**
 * Runs what webtorch.export wrote, on WebGPU. One file, no dependencies, no eval.
 *
 *   import { load } from "./runtime.js";
 *   const m = await load("./");
 *   const { loss } = await m.train({ x, y });     // {data, shape, dtype}
 *   m.set("lr", 1e-3);
 *
 * The program runs in a worker, so that the page never waits. Parameters and optimizer state stay on the device. A call is one
 * submission, and what it returns is read back with it; `m.train(inputs, { read: false })` reads nothing. Calls may overlap: they
 * run in the order in which they were made.
 */

const FORMAT = "webtorch program";
const VERSION = 3;
// Ties this file to program.json.
const RUNTIME = "";
// Sets of memory for which a function keeps its bind groups: buffers that are exchanged at each call alternate between two.
const PLANS = 16;
const WORKER = "webtorch runtime";
// Calls that the device has at once: enough that it never waits for the page, few enough that newer ones overtake.
const AHEAD = 3;
// How often, in milliseconds, the state is kept for when the device is lost. What is large is kept less often.
const KEEP = 10_000;
const LARGE = 64 << 20;
const DATABASE = "webtorch";

/** What went wrong, in words. */
export class WebtorchError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "WebtorchError";
  }
}

// --- element types ----------------------------------------------------------------------------------------------------

const scratch = new DataView(new ArrayBuffer(4));

function floatOf(bits) {
  scratch.setUint32(0, bits);
  return scratch.getFloat32(0);
}

function bitsOf(x) {
  scratch.setFloat32(0, x);
  return scratch.getUint32(0);
}

/** Drop the low bits of a float's: to nearest, ties to even, as everywhere. */
const rounded = (bits, dropped) => (bits + (1 << (dropped - 1)) - 1 + ((bits >>> dropped) & 1)) >>> dropped;

function halfToFloat(h) {
  const x = floatOf(((h & 0x8000) << 16) | ((h & 0x7fff) << 13)) * 2 ** 112;
  if (Math.abs(x) < 65536) return x;
  return Math.abs(x) > 65536 ? NaN : x * Infinity;
}

function floatToHalf(x) {
  const bits = bitsOf(x);
  const sign = (bits >>> 16) & 0x8000;
  const a = bits & 0x7fffffff;
  if (a > 0x7f800000) return sign | 0x7e00;
  if (a >= 0x47800000) return sign | 0x7c00;
  // Subnormal halves are multiples of 2 ** -24, as are floats between 0.5 and 1.
  if (a < 0x38800000) return sign | (bitsOf(Math.abs(Math.fround(x)) + 0.5) - bitsOf(0.5));
  return sign | rounded(a - 0x38000000, 13);
}

const brainToFloat = (h) => floatOf(h << 16);
const floatToBrain = (x) => (Number.isNaN(x) ? 0x7fc0 : rounded(bitsOf(x), 16) & 0xffff);

const integers = (code, file, view, low, high) => ({ code, file, stored: view, view, low, high });

/** `stored` is the array of device memory, `view` what a page gets and may give, `file` the bytes in a safetensors file. */
const TYPES = {
  float32: { code: "F32", file: 4, stored: Float32Array, view: Float32Array },
  float16: { code: "F16", file: 2, stored: Uint16Array, view: Float32Array, encode: floatToHalf, decode: halfToFloat },
  bfloat16: { code: "BF16", file: 2, stored: Uint16Array, view: Float32Array, encode: floatToBrain, decode: brainToFloat },
  // WebGPU has no 64-bit integers: the values are checked on the way in.
  int64: integers("I64", 8, Int32Array, -(2 ** 31), 2 ** 31 - 1),
  int32: integers("I32", 4, Int32Array, -(2 ** 31), 2 ** 31 - 1),
  int16: integers("I16", 2, Int16Array, -32768, 32767),
  int8: integers("I8", 1, Int8Array, -128, 127),
  uint8: integers("U8", 1, Uint8Array, 0, 255),
  uint32: integers("U32", 4, Uint32Array, 0, 2 ** 32 - 1),
  bool: { code: "BOOL", file: 1, stored: Uint8Array, view: Uint8Array, encode: (v) => (v ? 1 : 0) },
};

const elementsOf = (shape) => shape.reduce((n, size) => n * size, 1);
const nbytesOf = (dtype, shape) => elementsOf(shape) * TYPES[dtype].file;
const words = (bytes) => (bytes + 3) & ~3;
const shown = (shape) => `[${shape.join(", ")}]`;

function typeOf(dtype, what) {
  const type = TYPES[dtype];
  if (!type) throw new WebtorchError(`${what}: this runtime does not know the type ${dtype}`);
  return type;
}

/** Return the shape of nested arrays, following the first element of each. */
function shapeOf(value) {
  const shape = [];
  while (Array.isArray(value) || ArrayBuffer.isView(value)) {
    shape.push(value.length);
    value = value[0];
  }
  return shape;
}

function* numbersOf(value, shape, depth, what) {
  if (depth === shape.length) {
    yield value;
    return;
  }
  if (value == null || value.length !== shape[depth]) {
    throw new WebtorchError(`${what}: the nested arrays do not have one shape: expected ${shape[depth]} entries, found ${value?.length}`);
  }
  for (const item of value) yield* numbersOf(item, shape, depth + 1, what);
}

/**
 * Return `value` as the bytes of device memory, whole words. A typed array or flat array of the right length is taken as it
 * is; nested arrays must have the shape; `{data, shape}`, as calls return it, is checked too.
 */
function encode(value, shape, dtype, what) {
  const type = typeOf(dtype, what);
  const count = elementsOf(shape);
  if (value === undefined || value === null) throw new WebtorchError(`${what}: no value was given; it is ${dtype}${shown(shape)}`);
  let given = null;
  if (typeof value === "object" && "data" in value && !ArrayBuffer.isView(value)) {
    given = value.shape ?? null;
    value = value.data;
  }
  let source = value;
  if (ArrayBuffer.isView(value)) {
    if (value.length !== count) given ??= [value.length];
  } else if (Array.isArray(value)) {
    const nested = shapeOf(value);
    if (nested.length > 1 || shape.length === 1 || value.length !== count) given ??= nested;
    source = [...numbersOf(value, nested, 0, what)];
  } else {
    given ??= [];
    source = [value];
  }
  if (given && (given.length !== shape.length || given.some((n, d) => n !== shape[d])) && !(count === 1 && elementsOf(given) === 1)) {
    throw new WebtorchError(`${what}: expected shape ${shown(shape)}, got ${shown(given)}`);
  }
  const bytes = new ArrayBuffer(words(count * type.stored.BYTES_PER_ELEMENT));
  const out = new type.stored(bytes, 0, count);
  const whole = type.low !== undefined;
  if (source instanceof type.stored && !whole && !type.encode) {
    out.set(source);
    return bytes;
  }
  for (let i = 0; i < count; i++) {
    const number = Number(source[i]);
    if (whole && !(number >= type.low && number <= type.high && Number.isInteger(number))) {
      const why = dtype === "int64" ? " (held in 32 bits on WebGPU)" : "";
      throw new WebtorchError(`${what}: element ${i} is ${source[i]}, which does not fit ${dtype}${why}`);
    }
    if (Number.isNaN(number) && !Number.isNaN(source[i])) throw new WebtorchError(`${what}: element ${i} is ${source[i]}, not a number`);
    out[i] = type.encode ? type.encode(number) : number;
  }
  return bytes;
}

/** Return the elements that a strided view of stored bytes shows, in row-major order. */
function decode(bytes, at, { dtype, shape, strides, offset }) {
  const type = typeOf(dtype, "output");
  const stored = new type.stored(bytes, at);
  const count = elementsOf(shape);
  const whole = contiguous(shape);
  if (shape.every((size, d) => size === 1 || strides[d] === whole[d])) {
    const part = stored.subarray(offset, offset + count);
    return type.decode ? type.view.from(part, (v) => type.decode(v)) : type.view.from(part);
  }
  const out = new type.view(count);
  const place = new Array(shape.length).fill(0);
  let from = offset;
  for (let i = 0; i < count; i++) {
    out[i] = type.decode ? type.decode(stored[from]) : stored[from];
    for (let d = shape.length - 1; d >= 0; d--) {
      from += strides[d];
      if (++place[d] < shape[d]) break;
      from -= strides[d] * shape[d];
      place[d] = 0;
    }
  }
  return out;
}

const contiguous = (shape) => {
  const strides = new Array(shape.length);
  let step = 1;
  for (let d = shape.length - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
};

// --- safetensors ------------------------------------------------------------------------------------------------------

const bytesOf = (file) => (file instanceof ArrayBuffer ? new Uint8Array(file) : file);

/** Return the parsed header of a safetensors file (bytes) and its length. */
function headerOf(file, damaged) {
  if (file.length < 8) throw damaged(`it has ${file.length} bytes`);
  const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));
  if (length > file.length - 8) throw damaged(`its header would take ${length} of ${file.length} bytes`);
  try {
    return [JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + length))), length];
  } catch (error) {
    throw damaged(`its header is not JSON (${error.message})`);
  }
}

/** Return {name: {dtype, shape, bytes}} of a safetensors file (ArrayBuffer or Uint8Array). Throws WebtorchError if it is damaged. */
export function readSafetensors(given, what = "weights") {
  const file = bytesOf(given);
  const damaged = (why) => new WebtorchError(`${what}: the file is damaged or incomplete: ${why}`);
  const [header, length] = headerOf(file, damaged);
  const names = Object.fromEntries(Object.entries(TYPES).map(([name, type]) => [type.code, name]));
  const out = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const dtype = names[entry?.dtype];
    const [begin, end] = entry?.data_offsets ?? [];
    if (!dtype || !Array.isArray(entry.shape) || !Number.isInteger(begin) || !Number.isInteger(end)) throw damaged(`the entry of ${name} is not valid`);
    const nbytes = nbytesOf(dtype, entry.shape);
    const data = file.subarray(8 + length);
    if (begin < 0 || end - begin !== nbytes || end > data.length) throw damaged(`${name} should have ${nbytes} bytes at ${begin}, the file ends at ${data.length}`);
    out[name] = { dtype, shape: entry.shape, bytes: data.subarray(begin, end) };
  }
  return out;
}

/** Return a safetensors file (Uint8Array) of {name: {dtype, shape, bytes}}. */
export function writeSafetensors(tensors) {
  // Larger element types first, so that every tensor is aligned.
  const order = Object.keys(tensors).sort((a, b) => TYPES[tensors[b].dtype].file - TYPES[tensors[a].dtype].file);
  const header = {};
  let position = 0;
  for (const name of order) {
    const { dtype, shape, bytes } = tensors[name];
    header[name] = { dtype: TYPES[dtype].code, shape, data_offsets: [position, position + bytes.length] };
    position += bytes.length;
  }
  let text = new TextEncoder().encode(JSON.stringify(header));
  const length = (text.length + 7) & ~7;
  const file = new Uint8Array(8 + length + position);
  new DataView(file.buffer).setBigUint64(0, BigInt(length), true);
  file.fill(32, 8, 8 + length);
  file.set(text, 8);
  for (const name of order) file.set(tensors[name].bytes, 8 + length + header[name].data_offsets[0]);
  return file;
}

/** Return the stamp that an export put into a file that was read before; undefined where there is none. */
const stampOf = (file) => headerOf(bytesOf(file), (why) => new WebtorchError(why))[0].__metadata__?.["webtorch.export"];

const FLOATS = ["float32", "float16", "bfloat16"];

/** Return a file's tensor of floats as one of another float type. */
function converted({ dtype, shape, bytes }, wanted) {
  const [from, to] = [TYPES[dtype], TYPES[wanted]];
  const given = new from.stored(bytes.slice().buffer);
  const out = new to.stored(given.length);
  for (let i = 0; i < given.length; i++) {
    const value = from.decode ? from.decode(given[i]) : given[i];
    out[i] = to.encode ? to.encode(value) : value;
  }
  return { dtype: wanted, shape, bytes: new Uint8Array(out.buffer) };
}

/** Return the bytes of a file's tensor as device memory holds them. */
function toDevice(tensor, wanted, what) {
  const { dtype, bytes } = tensor.dtype === wanted ? tensor : converted(tensor, wanted);
  const out = new Uint8Array(words(dtype === "int64" ? bytes.length / 2 : bytes.length));
  if (dtype !== "int64") {
    out.set(bytes);
    return out;
  }
  const wide = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const narrow = new Int32Array(out.buffer);
  for (let i = 0; i < narrow.length; i++) {
    const value = wide.getBigInt64(8 * i, true);
    if (BigInt.asIntN(32, value) !== value) throw new WebtorchError(`${what}: element ${i} is ${value}, beyond the 32 bits that integers have on WebGPU`);
    narrow[i] = Number(value);
  }
  return out;
}

/** The reverse: the bytes of a file's tensor from those of device memory. */
function toFile(bytes, dtype, count) {
  if (dtype !== "int64") return bytes.slice(0, count * TYPES[dtype].file);
  const narrow = new Int32Array(bytes.buffer, bytes.byteOffset, count);
  const wide = new BigInt64Array(count);
  for (let i = 0; i < count; i++) wide[i] = BigInt(narrow[i]);
  return new Uint8Array(wide.buffer);
}

// --- the device -------------------------------------------------------------------------------------------------------

const noDevice = (text) => Object.assign(new WebtorchError(text), { noDevice: true });

/** Return navigator.gpu. Throws WebtorchError where there is none. */
function webgpu() {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) {
    const why = globalThis.isSecureContext === false ? "this page is not served over https or from localhost" : "this browser does not offer it, or it is switched off";
    throw noDevice(`WebGPU is not available: ${why}. Current versions of Chrome, Edge, Safari and Firefox have it.`);
  }
  return gpu;
}

const OPTIONAL = ["timestamp-query"];

async function requestAdapter() {
  const adapter = await webgpu().requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw noDevice("WebGPU is present, but the browser offers no graphics device: the driver may be blocked or missing.");
  return adapter;
}

/** Whether an adapter is a program on the processor, which wants other kernels than a graphics card. */
export function isSoftware({ info = {}, isFallbackAdapter }) {
  const { vendor, architecture, description } = info;
  return Boolean(isFallbackAdapter || info.isFallbackAdapter || /swiftshader|llvmpipe|lavapipe|basic render/i.test(`${vendor} ${architecture} ${description}`));
}

/** Return what a program needs and an adapter has not, in words. */
function tooLittle(adapter, { limits = {}, features = [] }) {
  const missing = [];
  for (const [name, needed] of Object.entries(limits)) {
    const offered = adapter.limits[name];
    if (offered === undefined || offered < needed) missing.push(`${name}: ${needed} is needed, this device offers ${offered ?? "none"}`);
  }
  for (const name of features) if (!adapter.features.has(name)) missing.push(`feature ${name}: this device does not have it`);
  return missing;
}

/** Return a GPUDevice with the limits and features that a program needs. Throws WebtorchError, saying what is missing. */
export async function requestDevice({ limits = {}, features = [] } = {}) {
  const adapter = await requestAdapter();
  const missing = tooLittle(adapter, { limits, features });
  if (missing.length) throw noDevice(`This device is too small for the program. ${missing.join("; ")}.`);
  const device = await adapter.requestDevice({ requiredLimits: limits, requiredFeatures: [...features, ...OPTIONAL.filter((name) => adapter.features.has(name))] });
  device.webtorchName = nameOf(adapter.info ?? device.adapterInfo ?? {});
  return device;
}

function nameOf(info) {
  const text = info.description || [info.vendor, info.architecture].filter(Boolean).join(" ");
  return text || "WebGPU device";
}

function excerpt(code, line) {
  const lines = code.split("\n");
  const first = Math.max(1, line - 3);
  const numbered = lines.slice(first - 1, line + 2).map((text, i) => `${first + i === line ? ">" : " "}${String(first + i).padStart(5)} | ${text}`);
  return numbered.join("\n");
}

// Kernels and layouts by device: several exports of one model, opened on one device, are compiled once.
const compiled = new WeakMap();

/** Return the pipeline of a kernel, compiled once for each device. */
function kernelOf(device, kernel) {
  let cache = compiled.get(device);
  if (!cache) compiled.set(device, (cache = { kernels: new Map(), layouts: new Map() }));
  const key = `${kernel.bindings.join()}\n${kernel.code}`;
  let found = cache.kernels.get(key);
  if (!found) cache.kernels.set(key, (found = compileKernel(device, kernel, cache.layouts)));
  return found;
}

/** Compile a kernel. Throws WebtorchError with the line that the compiler refused. */
async function compileKernel(device, kernel, layouts) {
  const key = kernel.bindings.join();
  let layout = layouts.get(key);
  if (!layout) {
    const types = { read: "read-only-storage", read_write: "storage", uniform: "uniform" };
    const entries = kernel.bindings.map((kind, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: types[kind] } }));
    const group = device.createBindGroupLayout({ entries });
    layout = { group, pipeline: device.createPipelineLayout({ bindGroupLayouts: [group] }) };
    layouts.set(key, layout);
  }
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code: kernel.code, label: kernel.name });
  const refused = device.popErrorScope();
  let failure = null;
  let pipeline = null;
  try {
    pipeline = await device.createComputePipelineAsync({ label: kernel.name, layout: layout.pipeline, compute: { module, entryPoint: kernel.entry } });
  } catch (error) {
    failure = error;
  }
  const problem = (await refused) ?? failure;
  if (problem) {
    const { messages } = await module.getCompilationInfo();
    const first = messages.find((m) => m.type === "error");
    const where = first ? `line ${first.lineNum}:${first.linePos}: ${first.message}\n${excerpt(kernel.code, first.lineNum)}` : problem.message;
    throw new WebtorchError(`kernel ${kernel.name}: the browser's compiler refused it: ${where}`, { cause: problem });
  }
  return { pipeline, group: layout.group };
}

// --- calls, on whatever device ----------------------------------------------------------------------------------------

/** Return the inputs of a call as bytes. Everything is checked before anything changes. */
function encodeInputs(name, description, inputs) {
  const known = new Set([...description.arguments, ...description.numbers].map((a) => a.name));
  for (const key of Object.keys(inputs)) {
    if (!known.has(key)) throw new WebtorchError(`${name}: there is no input ${key}; the inputs are ${[...known].join(", ") || "none"}`);
  }
  for (const { name: key } of description.numbers) {
    if (key in inputs && typeof inputs[key] !== "number") throw new WebtorchError(`${name}: ${key} is a number, got ${typeof inputs[key]}`);
  }
  return description.arguments.map((a) => encode(inputs[a.name], a.shape, a.dtype, `${name}: input ${a.name}`));
}

/** Return the runtime arguments of a call: settings, numbers among the inputs, words of the random counter. */
function argumentValues(model, { args, numbers }, inputs) {
  const local = {};
  for (const { name, value } of numbers) local[name] = Number(inputs[name] ?? value);
  return args.map((arg) => {
    if (arg.random) return Number(((model.random + BigInt(arg.random[0])) >> BigInt(32 * arg.random[1])) & 0xffffffffn);
    if (!arg.terms) return Number(arg.value);
    let sum = 0;
    for (const [coefficient, names] of arg.terms) {
      let product = Number(coefficient);
      for (const name of names) product *= local[name] ?? model.settings[name];
      sum += product;
    }
    return sum;
  });
}

/** Return the error that a kernel reported: of an index, or a rule's text. */
function indexError(sites, site, value) {
  const [op, dim, size, line] = sites[site - 1] ?? ["an operation", 0, "?", ""];
  const text = dim < 0 ? op : `${op}: index ${value} is out of bounds for dimension ${dim} with size ${size}`;
  return new WebtorchError(`${text}${line ? ` (${line})` : ""}`);
}

/** Return the bytes of states, from tensors of a file. */
function stateContents(states, tensors, what) {
  return states.map(({ name, dtype, shape }) => {
    const tensor = tensors[name];
    if (!tensor) throw new WebtorchError(`${what}: the tensor ${name} is missing`);
    const fits = tensor.dtype === dtype || (FLOATS.includes(tensor.dtype) && FLOATS.includes(dtype));
    if (!fits || elementsOf(tensor.shape) !== elementsOf(shape)) {
      throw new WebtorchError(`${what}: ${name} is ${tensor.dtype}${shown(tensor.shape)}, the program wants ${dtype}${shown(shape)}`);
    }
    return toDevice(tensor, dtype, `${what}: ${name}`);
  });
}

// --- memory -----------------------------------------------------------------------------------------------------------

let nextMemory = 1;

/**
 * Memory of a device: one buffer, or a row of them of `step` bytes each where it is larger than one may be. The program is
 * written so that nothing it binds lies in two.
 */
class Memory {
  constructor(device, size, step, usage, label = "") {
    Object.assign(this, { id: nextMemory++, size, step, buffers: [] });
    for (let first = 0; first < size; first += step) this.buffers.push(device.createBuffer({ size: Math.min(step, size - first), usage, label }));
  }

  /** Return the buffer with a byte, and where it is there. */
  at(first) {
    return { buffer: this.buffers[Math.floor(first / this.step)], offset: first % this.step };
  }

  write(queue, bytes) {
    const all = bytesOf(bytes);
    this.buffers.forEach((buffer, i) => queue.writeBuffer(buffer, 0, all.subarray(i * this.step, (i + 1) * this.step)));
  }

  /** Copy the first bytes to another's, there from `place` on, and return that. */
  copy(encoder, target, size, place = 0) {
    for (let first = 0, count; first < size; first += count) {
      const [from, to] = [this.at(first), target.at(place + first)];
      count = Math.min(size - first, this.step - from.offset, target.step - to.offset);
      encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, count);
    }
    return target;
  }

  /** Wait for memory that may be mapped, and return its bytes. */
  async read() {
    await Promise.all(this.buffers.map((buffer) => buffer.mapAsync(GPUMapMode.READ)));
    const out = new Uint8Array(this.size);
    this.buffers.forEach((buffer, i) => {
      out.set(new Uint8Array(buffer.getMappedRange()), i * this.step);
      buffer.unmap();
    });
    return out.buffer;
  }

  destroy() {
    for (const buffer of this.buffers) buffer.destroy();
  }
}

// --- programs ---------------------------------------------------------------------------------------------------------

/** One exported function, ready to be called. */
class Program {
  constructor(model, name, description) {
    Object.assign(this, { model, name, description, plans: new Map(), packed: null, own: new Map(), arguments: [], staging: [] });
  }

  allocate() {
    const { model } = this;
    const { memory, uniform, status } = this.description;
    memory.forEach((place, entry) => {
      if (place.state !== undefined) return;
      const own = model.memory(place.own ?? place.bytes);
      this.own.set(entry, own);
      if (place.argument !== undefined) this.arguments[place.argument] = own;
    });
    if (uniform.bytes) this.uniform = model.device.createBuffer({ size: uniform.bytes, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    if (status) this.status = model.memory(16);
  }

  release() {
    for (const memory of [...this.own.values(), ...this.staging, this.uniform, this.status]) memory?.destroy();
  }

  memory(entry) {
    return this.own.get(entry) ?? this.model.states[this.description.memory[entry].state];
  }

  /** Write the runtime arguments into the uniform buffer, if any of them changed. */
  packArguments(inputs) {
    const { args, uniform } = this.description;
    if (!this.uniform) return;
    const { model } = this;
    const values = argumentValues(model, this.description, inputs);
    const view = new DataView(new ArrayBuffer(uniform.bytes));
    for (const [offset, number] of uniform.fields) {
      view[{ f32: "setFloat32", u32: "setUint32" }[args[number].type] ?? "setInt32"](offset, values[number], true);
    }
    const bytes = new Uint8Array(view.buffer);
    if (!this.packed || bytes.some((b, i) => b !== this.packed[i])) {
      model.device.queue.writeBuffer(this.uniform, 0, bytes);
      this.packed = bytes;
    }
  }

  /** Return the bind groups of every dispatch for the memory as it is now. */
  plan() {
    const { device, kernels, states } = this.model;
    const used = (this.used ??= [...new Set(this.description.memory.filter((p) => p.state !== undefined).map((p) => p.state))]);
    const swapped = this.description.updates.map(([, entry]) => this.own.get(entry).id);
    const key = used.map((s) => states[s].id).join() + "/" + swapped.join();
    let groups = this.plans.get(key);
    if (groups) return groups;
    groups = this.description.steps.map((step) => {
      if (step.copy) return null;
      const resources = step.bind.map(([entry, size, offset = 0]) => ({ ...this.memory(entry).at(offset), size }));
      if (step.uniform) resources.push({ buffer: this.uniform, offset: step.uniform[0], size: step.uniform[1] });
      if (step.status) resources.push({ ...this.status.at(0), size: 8 });
      const entries = resources.map((resource, binding) => ({ binding, resource }));
      return device.createBindGroup({ layout: kernels[step.kernel].group, entries });
    });
    this.plans.set(key, groups);
    if (this.plans.size > PLANS) this.plans.delete(this.plans.keys().next().value);
    return groups;
  }

  call(inputs = {}, { read = true, step = null } = {}) {
    const { model, description } = this;
    model.check();
    const encoded = encodeInputs(this.name, description, inputs);
    const { queue } = model.device;
    encoded.forEach((bytes, i) => this.arguments[i].write(queue, bytes));
    this.packArguments(inputs);
    // What is profiled waits between its dispatches; nothing else is running then.
    if (step) return this.apart(step).then(() => this.finish(read, 0));
    return this.finish(read, description.steps.length);
  }

  async apart(step) {
    for (let i = 0; i < this.description.steps.length; i++) await step((encoder, pass) => this.record(encoder, i, i + 1, pass), i);
  }

  /** Add some of the steps to what the device will do. */
  record(encoder, first, end, timing) {
    const groups = this.plan();
    let pass = null;
    let last = null;
    for (let i = first; i < end; i++) {
      const { copy, kernel, grid } = this.description.steps[i];
      if (copy) {
        pass?.end();
        pass = last = null;
        this.memory(copy[0]).copy(encoder, this.memory(copy[1]), copy[2]);
        continue;
      }
      pass ??= encoder.beginComputePass(timing);
      const { pipeline } = this.model.kernels[kernel];
      if (pipeline !== last) pass.setPipeline((last = pipeline));
      pass.setBindGroup(0, groups[i]);
      pass.dispatchWorkgroups(...grid);
    }
    pass?.end();
  }

  finish(read, count) {
    const { model, description } = this;
    const { encoder, staging } = this.encode(read, count);
    model.device.queue.submit([encoder.finish()]);
    model.random = BigInt.asUintN(64, model.random + BigInt(description.draws));
    for (const [state, entry] of description.updates) {
      const before = model.states[state];
      model.states[state] = this.own.get(entry);
      this.own.set(entry, before);
    }
    return read ? this.read(staging) : Promise.resolve({});
  }

  /** Run once, each dispatch on its own, and return how long each took in milliseconds: a call as any other. */
  async profile(inputs) {
    const { device, program } = this.model;
    const { steps } = this.description;
    const timed = device.features.has("timestamp-query") && steps.length <= 2048;
    const stamps = timed ? device.createQuerySet({ type: "timestamp", count: 2 * steps.length }) : null;
    const rows = [];
    const outputs = await this.call(inputs, { step: async (encode, i) => {
      const started = performance.now();
      const encoder = device.createCommandEncoder();
      encode(encoder, timed ? { timestampWrites: { querySet: stamps, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 } } : undefined);
      device.queue.submit([encoder.finish()]);
      if (!timed) await device.queue.onSubmittedWorkDone();
      const step = steps[i];
      rows.push({ kernel: step.copy ? "copy" : program.kernels[step.kernel].name, grid: step.grid ?? [], line: step.line ?? "", ms: performance.now() - started });
    } });
    if (timed && steps.length) {
      const size = 16 * steps.length;
      const resolved = device.createBuffer({ size, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
      const staging = this.model.staging(size, size);
      const encoder = device.createCommandEncoder();
      encoder.resolveQuerySet(stamps, 0, 2 * steps.length, resolved, 0);
      encoder.copyBufferToBuffer(resolved, 0, staging.buffers[0], 0, size);
      device.queue.submit([encoder.finish()]);
      const times = new BigUint64Array(await this.model.download(staging));
      rows.forEach((row, i) => steps[i].copy || (row.ms = Number(times[2 * i + 1] - times[2 * i]) / 1e6));
      for (const gone of [resolved, staging, stamps]) gone.destroy();
    }
    return { rows, outputs, clock: timed ? "device" : "page" };
  }

  encode(read, count) {
    const { model } = this;
    const { returns } = this.description;
    const encoder = model.device.createCommandEncoder({ label: this.name });
    this.record(encoder, 0, count);
    let staging = null;
    const total = returns.reduce((sum, r) => sum + r.bytes, 0) + (this.status ? 8 : 0);
    if (read && total) {
      staging = this.staging.pop() ?? model.staging(total);
      let at = 0;
      for (const { entry, bytes } of returns) {
        this.memory(entry).copy(encoder, staging, bytes, at);
        at += bytes;
      }
      if (this.status) {
        this.status.copy(encoder, staging, 8, at);
        encoder.clearBuffer(this.status.buffers[0], 0, 8);
      }
    }
    return { encoder, staging };
  }

  async read(staging) {
    const { returns, constants, sites } = this.description;
    const out = { ...constants };
    let bytes = new ArrayBuffer(0);
    if (staging) {
      bytes = await this.model.download(staging);
      this.staging.push(staging);
    }
    let at = 0;
    for (const entry of returns) {
      out[entry.name] = { data: decode(bytes, at, entry), shape: entry.shape, dtype: entry.dtype };
      at += entry.bytes;
    }
    if (this.status) {
      const [site, value] = new Int32Array(bytes, at, 2);
      if (site > 0) throw indexError(sites, site, value);
    }
    this.model.check();
    return out;
  }
}

/** What a program is on any device. */
class Opened {
  constructor(program, ahead) {
    Object.assign(this, { program, ahead, title: program.title, failure: null, functions: {} });
    this.settings = Object.fromEntries(Object.entries(program.settings).map(([name, value]) => [name, Number(value)]));
    this.random = BigInt(program.random);
  }

  /** @internal */
  add(name, callable) {
    this.functions[name] = callable;
    // A function called step must not take the place of ours.
    this[name] ??= async (inputs, options) => callable.call(inputs, options);
  }

  /** @internal Throw what the device reported since the last call. */
  check() {
    if (this.failure) throw this.failure;
  }

  /** Change a setting, such as the learning rate. With several parameter groups, "lr" changes all of them. */
  set(name, value) {
    for (const key of settingsNamed(this.settings, name, value)) this.settings[key] = value;
  }

  /** Return the value of a setting. */
  get(name) {
    return settingOf(this.settings, name);
  }

  /** Take parameters and optimizer state from a safetensors file (ArrayBuffer or Uint8Array). */
  loadState(file) {
    this.check();
    this.write(readSafetensors(file, "loadState"), "loadState");
  }

  /** @internal Everything is checked before any of it is written. */
  write(tensors, what) {
    stateContents(this.program.states, tensors, what).forEach((bytes, i) => this.put(i, bytes));
  }

  /** @internal One by one: they may be read as they are wanted. */
  begin(tensors) {
    this.program.states.forEach((s, i) => this.put(i, stateContents([s], tensors, "weights.safetensors")[0]));
  }
}

/** A program on a device, in this thread: its functions by name, its settings, its state. `Model` is the same in a worker. */
export class Engine extends Opened {
  constructor(device, program, shared = false) {
    super(program, AHEAD);
    Object.assign(this, { device, shared, states: [] });
    this.deviceName = device.webtorchName ?? nameOf(device.adapterInfo ?? {});
    device.lost.then((info) => {
      if (info.reason === "destroyed") this.failure ??= new WebtorchError("The graphics device was closed by the page.");
      else this.failure ??= new WebtorchError(`The graphics device was lost (${info.message || "the driver gave no reason"}).`);
    });
    this.hears = (event) => {
      const { error } = event;
      const what = globalThis.GPUOutOfMemoryError && error instanceof GPUOutOfMemoryError ? "The graphics device is out of memory" : "The graphics device reported";
      this.failure ??= new WebtorchError(`${what}: ${error.message}`);
    };
    device.addEventListener("uncapturederror", this.hears);
  }

  /** @internal */
  async open(weights) {
    const { device, program } = this;
    this.kernels = await Promise.all(program.kernels.map((kernel) => kernelOf(device, kernel)));
    device.pushErrorScope("out-of-memory");
    this.states = program.states.map(({ name, bytes }) => this.memory(bytes, name));
    for (const [name, description] of Object.entries(program.functions)) {
      const callable = new Program(this, name, description);
      callable.allocate();
      this.add(name, callable);
    }
    const short = await device.popErrorScope();
    if (short) throw new WebtorchError(`There is not enough graphics memory for the program: ${short.message}`);
    this.begin(weights);
    return this;
  }

  /** @internal */
  memory(size, label) {
    const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    return new Memory(this.device, size, this.program.row, STORAGE | COPY_SRC | COPY_DST, label);
  }

  /** @internal Memory that the page may read. */
  staging(size, row = this.program.row) {
    return new Memory(this.device, size, row, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
  }

  /** @internal */
  put(i, bytes) {
    this.states[i].write(this.device.queue, bytes);
  }

  /** @internal */
  async download(staging) {
    try {
      return await staging.read();
    } catch (error) {
      this.check();
      throw new WebtorchError(`Reading from the graphics device failed: ${error.message}`, { cause: error });
    }
  }

  /** Return parameters and optimizer state, as they are now, as a safetensors file. */
  async state() {
    this.check();
    const { device, program } = this;
    const encoder = device.createCommandEncoder();
    const copies = this.states.map((memory) => memory.copy(encoder, this.staging(memory.size), memory.size));
    device.queue.submit([encoder.finish()]);
    const tensors = {};
    for (const [i, { name, dtype, shape }] of program.states.entries()) {
      tensors[name] = { dtype, shape, bytes: toFile(new Uint8Array(await this.download(copies[i])), dtype, elementsOf(shape)) };
      copies[i].destroy();
    }
    return writeSafetensors(tensors);
  }

  /** Give the device's memory back. The model cannot be used afterwards; a device that was given to `open` can. */
  destroy() {
    this.failure = new WebtorchError("The model was destroyed.");
    this.device.removeEventListener("uncapturederror", this.hears);
    if (!this.shared) {
      this.device.destroy();
      return;
    }
    for (const memory of this.states) memory.destroy();
    for (const program of Object.values(this.functions)) program.release();
  }
}

function checked(program) {
  if (program?.format !== FORMAT) throw new WebtorchError("program.json: this is not a program that webtorch exported");
  if (program.version !== VERSION) throw new WebtorchError(`program.json: it has version ${program.version}, this runtime.js reads version ${VERSION}: export again`);
  if (RUNTIME && program.runtime && program.runtime !== RUNTIME) {
    throw new WebtorchError(`program.json: it was exported with another runtime.js (${program.runtime}) than this one (${RUNTIME}): copy all the files of one export`);
  }
  for (const part of ["functions", "kernels", "states", "settings"]) {
    if (typeof program[part] !== "object" || program[part] === null) throw new WebtorchError(`program.json: the file is damaged or incomplete: it has no ${part}`);
  }
  return program;
}

/** Open a program that is in memory, in this thread: the parsed program.json, and tensors as `readSafetensors` returns them. */
export async function open(program, weights = {}, { device = null } = {}) {
  return new Engine(device ?? (await requestDevice(checked(program))), checked(program), device !== null).open(weights);
}

/**
 * Open a program on the processor, in this thread. `files` are {code, constants} of cpu.wasm and cpu.bin; `library` is the module
 * cpu.js, `script` its address for threads, of which there are as many as `threads` says or the processor has.
 */
export async function openCpu(program, weights, files, { library, script = null, threads = null }) {
  const tools = { Opened, WebtorchError, encodeInputs, argumentValues, indexError, decode, fits, nbytesOf, writeSafetensors };
  return library.openEngine(tools, checked(program), weights, { ...files, threads, script });
}

/** Fetch a file of an export. */
export async function fetchFile(base, name) {
  let response;
  try {
    // Ask the server each time: a program and weights of two exports do not fit each other.
    response = await fetch(new URL(name, base), { cache: "no-cache" });
  } catch (error) {
    throw new WebtorchError(`${name}: it could not be fetched (${error.message}). A page opened as a file cannot fetch: use a server, such as webtorch serve, or export with single_file=True`, { cause: error });
  }
  if (!response.ok) throw new WebtorchError(`${name}: the server answered ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

// --- what a tab keeps -------------------------------------------------------------------------------------------------

/** Run a request on the store of this origin and return its result. */
function stored(mode, request) {
  return new Promise((resolve, reject) => {
    const failed = (error) => reject(new WebtorchError(`The browser's storage could not be used: ${error?.message ?? "no reason was given"}`, { cause: error }));
    let opening;
    try {
      opening = indexedDB.open(DATABASE, 1);
    } catch (error) {
      failed(error);
      return;
    }
    opening.onupgradeneeded = () => opening.result.createObjectStore("states");
    opening.onerror = () => failed(opening.error);
    opening.onsuccess = () => {
      const database = opening.result;
      const transaction = database.transaction("states", mode);
      const asked = request(transaction.objectStore("states"));
      // A write counts when its transaction is complete: a tab that is closed earlier leaves the old value.
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = transaction.onerror = () => failed(transaction.error);
    };
  });
}

// --- the worker's side ------------------------------------------------------------------------------------------------

/** Wait until the messages that have come were taken. */
const nextTurn = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => (port1.close(), resolve());
    port2.postMessage(0);
  });

/** Owns the engine: takes messages in order, answers each, keeps the state for when the device is lost. */
class Host {
  constructor(port) {
    Object.assign(this, { port, jobs: [], running: 0, busy: false, calls: 0, engine: null });
    port.onmessage = ({ data }) => this.take(data);
  }

  take(job) {
    if (job.op === "abort") {
      this.drop((other) => other.id === job.target);
      return;
    }
    if (job.options?.latest) this.drop((other) => other.op === "call" && other.name === job.name && other.options?.latest);
    this.jobs.push(job);
    this.pump();
  }

  /** Answer waiting jobs with "aborted". */
  drop(which) {
    const gone = this.jobs.filter(which);
    this.jobs = this.jobs.filter((job) => !gone.includes(job));
    for (const { id } of gone) this.port.postMessage({ id, status: "aborted" });
  }

  async pump() {
    if (this.busy) return;
    this.busy = true;
    while (this.jobs.length) {
      const job = this.jobs[0];
      // Calls follow each other closely; everything else waits until they are done.
      if (job.op === "call" ? this.running >= (this.engine?.ahead ?? AHEAD) || (this.engine?.failure && this.running > 0) : this.running > 0 && (job.op !== "set" || this.engine.ahead === 1)) break;
      this.jobs.shift();
      const work = this.start(job);
      if (job.op !== "call") await work;
    }
    this.busy = false;
  }

  async start(job) {
    this.running += 1;
    try {
      const value = await this[job.op](job);
      this.port.postMessage({ id: job.id, status: "completed", value });
    } catch (error) {
      const lost = this.engine?.failure && job.op !== "destroy";
      this.running -= 1;
      let message = error.message;
      // The first to meet a lost device tells what becomes of it.
      if (lost && !this.running) message += ` ${await this.recover()}`;
      else if (lost) message += " The model is being opened again.";
      this.running += 1;
      this.port.postMessage({ id: job.id, status: "failed", name: error.name, message });
    }
    this.running -= 1;
    if (!this.busy) this.pump();
  }

  /** Open the model again with the state that was kept last, and say so. */
  async recover() {
    if (this.gone) return "";
    const { device, kept, settings } = this;
    const behind = this.calls - kept.calls;
    this.engine.device.destroy();
    for (let wait = 100; ; wait *= 3) {
      try {
        this.engine = await this.make(readSafetensors(kept.file, "state"));
        break;
      } catch (error) {
        if (wait > 8000) return `It could not be opened again: ${error.message} Reload the page to go on from what was saved.`;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
    this.engine.settings = settings;
    this.engine.random = kept.random;
    this.calls = kept.calls;
    const where = this.device === device ? "" : ` on ${this.engine.deviceName}`;
    return `The model was opened again${where} with the state of ${behind === 1 ? "1 call" : `${behind} calls`} before.`;
  }

  async open({ source, options }) {
    const { program, weights } = await contents(source);
    const tensors = readSafetensors(weights, "weights.safetensors");
    fits(program, stampOf(weights), "weights.safetensors");
    // What runs, and what was written.
    Object.assign(this, { program, written: program, source, options });
    this.engine = await this.make(tensors);
    this.settings = this.engine.settings;
    this.key = options.key ?? `${program.title} ${await digest(program)}`;
    this.persist = Boolean(options.persist);
    this.every = options.keep ?? (program.states.reduce((sum, s) => sum + s.bytes, 0) > LARGE ? 6 * KEEP : KEEP);
    this.keep(weights);
    let resumed = null;
    if (options.resume) {
      try {
        resumed = await this.resume({});
      } catch (error) {
        // What another export left under the key, or a browser without storage, is no reason not to open.
        resumed = { error: error.message };
      }
    }
    return { program: { ...this.program, kernels: this.program.kernels.map(({ name, bindings }) => ({ name, bindings })) }, device: this.device, deviceName: this.engine.deviceName, reason: this.reason, settings: this.settings, resumed };
  }

  /** Open the program on the device that was asked for: by default a graphics device, and the processor where there is none. */
  async make(tensors) {
    const { written, source } = this;
    const { device = "auto" } = this.options;
    if (!["auto", "webgpu", "cpu"].includes(device)) throw new WebtorchError(`load: device is "auto", "webgpu" or "cpu", got ${device}`);
    const absent = typeof written.cpu === "string" ? written.cpu : !written.cpu ? "it was exported without one" : source.base || source.cpu ? "" : "its files were not given";
    const without = `This export has no program for the processor: ${absent}.`;
    if (device === "cpu" && absent) throw new WebtorchError(without);
    if (device === "cpu") return this.onProcessor(tensors, "");
    try {
      const adapter = await requestAdapter();
      // WebGPU without a graphics card: the processor does the work either way, and WebAssembly is its own language.
      if (device === "auto" && isSoftware(adapter)) {
        const slow = `WebGPU has no graphics card here (${nameOf(adapter.info ?? {})}), and the processor is faster without it.`;
        if (absent) return await this.onGraphics(tensors, adapter, `${slow} ${without}`);
        try {
          return await this.onProcessor(tensors, slow);
        } catch (error) {
          // A page may forbid WebAssembly, or have too little memory for it.
          return await this.onGraphics(tensors, adapter, error.message);
        }
      }
      return await this.onGraphics(tensors, adapter, "");
    } catch (error) {
      if (device === "webgpu" || !error.noDevice) throw error;
      if (absent) throw new WebtorchError(`${error.message} ${without}`, { cause: error });
      return this.onProcessor(tensors, error.message);
    }
  }

  async onGraphics(tensors, adapter, reason) {
    let program = this.written;
    if (isSoftware(adapter) && this.source.base) {
      const other = parsed(await fetchFile(this.source.base, "software.json"), "software.json");
      fits(program, other.stamp, "software.json");
      // One that has less than software adapters have runs what graphics cards run.
      if (!tooLittle(adapter, other).length) program = checked({ ...program, ...other });
    }
    const engine = await open(program, tensors);
    Object.assign(this, { program, device: "webgpu", reason });
    return engine;
  }

  async onProcessor(tensors, reason) {
    const { written: program, source } = this;
    const { threads = null } = this.options;
    this.files ??= source.cpu ?? (await Promise.all(["cpu.wasm", "cpu.bin"].map((name) => fetchFile(source.base, name))));
    const [code, constants] = this.files;
    const script = source.cpuScript ?? new URL("cpu.js", source.base).href;
    const engine = await openCpu(program, tensors, { code, constants }, { library: globalThis.webtorchEngine ?? (await import(script)), script, threads });
    Object.assign(this, { program, device: "cpu", reason });
    return engine;
  }

  keep(file, random = this.engine.random, calls = this.calls) {
    this.kept = { file, random, calls };
    this.keptAt = performance.now();
  }

  async call({ name, inputs, options }) {
    const { engine } = this;
    // Messages that are here go first: some take the place of what waits.
    if (engine.ahead === 1) await nextTurn();
    const running = engine.functions[name].call(inputs, options);
    if (options.read === false) await engine.device.queue.onSubmittedWorkDone();
    const outputs = await running;
    engine.check();
    this.calls += 1;
    if (this.program.functions[name].writes && performance.now() - this.keptAt > this.every && !this.keeping) {
      this.keeping = true;
      this.jobs.unshift({ op: "snapshot", id: 0 });
    }
    return outputs;
  }

  async snapshot() {
    this.keeping = false;
    this.keptAt = performance.now();
    if (this.persist) await this.save({});
    else await this.state();
  }

  async profile({ name, inputs }) {
    const found = await this.engine.functions[name].profile(inputs);
    this.calls += 1;
    return found;
  }

  set({ name, value }) {
    this.engine.set(name, value);
  }

  async state() {
    const { random } = this.engine;
    const { calls } = this;
    const file = await this.engine.state();
    this.keep(file, random, calls);
    return file;
  }

  loadState({ file }) {
    this.engine.loadState(file);
    this.keep(file);
  }

  async save({ key = this.key, note = this.note }) {
    this.note = note;
    await this.state();
    const { file, random, calls } = this.kept;
    const record = { file, random: String(random), settings: { ...this.settings }, calls, note, saved: Date.now() };
    await stored("readwrite", (store) => store.put(record, key));
    return { calls, saved: record.saved };
  }

  async resume({ key = this.key }) {
    const record = await stored("readonly", (store) => store.get(key));
    if (!record) return null;
    this.engine.loadState(record.file);
    this.engine.random = BigInt(record.random);
    for (const [name, value] of Object.entries(record.settings)) if (name in this.settings) this.engine.settings[name] = value;
    this.calls = record.calls;
    this.note = record.note;
    this.keep(record.file);
    return { calls: record.calls, note: record.note, saved: record.saved, settings: this.engine.settings };
  }

  async forget({ key = this.key }) {
    await stored("readwrite", (store) => store.delete(key));
  }

  destroy() {
    this.gone = true;
    this.engine?.destroy();
  }
}

async function digest(program) {
  const text = JSON.stringify(program.states);
  // Pages that are served without https, which the processor serves too, have no hashes.
  if (!globalThis.crypto?.subtle) return text;
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return Array.from(hash.slice(0, 8), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** Return the parsed program and the bytes of the weights of a folder, or of {program, weights} in memory. */
async function contents(source) {
  let { program: text, weights } = source;
  if (source.base) [text, weights] = await Promise.all(["program.json", "weights.safetensors"].map((name) => fetchFile(source.base, name)));
  return { program: checked(parsed(text, "program.json")), weights };
}

/** Refuse a file that another export wrote. Files that no export wrote, such as a downloaded state, have no stamp. */
function fits(program, stamp, name) {
  if (!stamp || !program.stamp || stamp === program.stamp) return;
  throw new WebtorchError(`${name}: it is of another export (${stamp}) than program.json (${program.stamp}): copy all the files of one export. Weights of another export are taken by m.loadState(file).`);
}

function parsed(text, name) {
  if (typeof text !== "string" && !(text instanceof ArrayBuffer) && !ArrayBuffer.isView(text)) return text;
  try {
    return JSON.parse(typeof text === "string" ? text : new TextDecoder().decode(text));
  } catch (error) {
    throw new WebtorchError(`${name}: the file is damaged or incomplete (${error.message})`, { cause: error });
  }
}

// --- the page's side --------------------------------------------------------------------------------------------------

/** A loaded export: its functions by name, its settings, its state. It lives in a worker. */
export class Model {
  constructor(port, close) {
    this.port = port;
    this.close = close;
    this.waiting = new Map();
    this.next = 1;
    port.onmessage = ({ data }) => this.answered(data);
  }

  /** @internal */
  answered({ id, ...answer }) {
    const resolve = this.waiting.get(id);
    this.waiting.delete(id);
    resolve?.(answer);
  }

  /** @internal Post a message; the promise is of {status, value} or {status, message}. */
  post(message, transfer = []) {
    if (this.gone) return Promise.resolve({ status: "failed", message: this.gone });
    const id = this.next++;
    const answer = new Promise((resolve) => this.waiting.set(id, resolve));
    answer.id = id;
    try {
      this.port.postMessage({ id, ...message }, transfer);
    } catch (error) {
      this.answered({ id, status: "failed", message: `${message.name ?? message.op}: an input cannot be sent to the worker: ${error.message}` });
    }
    return answer;
  }

  /** @internal */
  async ask(message) {
    const { status, value, message: text } = await this.post(message);
    if (status === "completed") return value;
    throw Object.assign(new WebtorchError(text ?? "A newer call took the place of this one."), { status });
  }

  /** @internal */
  async begin(source, options) {
    const opened = await this.ask({ op: "open", source, options });
    const { program } = opened;
    Object.assign(this, opened, { title: program.title, functions: program.functions });
    for (const name of Object.keys(program.functions)) {
      this[name] = async (inputs, given) => {
        const { status, outputs, error } = await this.run(name, inputs, given);
        if (error) throw Object.assign(error, { status });
        return outputs;
      };
    }
    return this;
  }

  /**
   * Call a function and say how it ended, without throwing: {status: "completed", outputs}, or "aborted" or "failed" with {error}.
   * With `latest`, the call takes the place of earlier such calls that have not started; `signal` is an AbortSignal.
   */
  async run(name, inputs = {}, { read = true, latest = false, signal = null } = {}) {
    const aborted = () => ({ status: "aborted", error: new WebtorchError(`${name}: the call was aborted before it ran.`) });
    if (!(name in this.functions)) return { status: "failed", error: this.unknown("run", name) };
    if (signal?.aborted) return aborted();
    const answer = this.post({ op: "call", name, inputs, options: { read, latest } });
    const stop = () => this.port.postMessage({ op: "abort", target: answer.id });
    signal?.addEventListener("abort", stop);
    const { status, value, message } = await answer;
    signal?.removeEventListener("abort", stop);
    if (status === "completed") return { status, outputs: value };
    return status === "aborted" ? aborted() : { status, error: new WebtorchError(message) };
  }

  /** @internal */
  unknown(what, name) {
    return new WebtorchError(`${what}: there is no function ${name}; there are ${Object.keys(this.functions).join(", ")}`);
  }

  /** Change a setting, such as the learning rate, for the calls that follow. With several parameter groups, "lr" changes all of them. */
  set(name, value) {
    for (const key of settingsNamed(this.settings, name, value)) this.settings[key] = value;
    this.post({ op: "set", name, value });
  }

  /** Return the value of a setting. */
  get(name) {
    return settingOf(this.settings, name);
  }

  /** Return parameters and optimizer state, as they are after the calls so far, as a safetensors file. */
  state() {
    return this.ask({ op: "state" });
  }

  /** Take parameters and optimizer state from a safetensors file (ArrayBuffer or Uint8Array). */
  loadState(file) {
    return this.ask({ op: "loadState", file });
  }

  /** Keep the state, the settings and a note of the page's own in this browser, for `resume`. */
  save({ key, note } = {}) {
    return this.ask({ op: "save", key, note });
  }

  /** Go on from what `save` kept. Returns {calls, note, saved}, or null when there is nothing. */
  async resume({ key } = {}) {
    const found = await this.ask({ op: "resume", key });
    if (found) Object.assign(this.settings, found.settings);
    return found;
  }

  /** Drop what `save` kept. */
  forget({ key } = {}) {
    return this.ask({ op: "forget", key });
  }

  /** Call a function with each dispatch timed: {rows: [{kernel, grid, line, ms}], outputs, clock}. */
  async profile(name, inputs = {}) {
    if (!(name in this.functions)) throw this.unknown("profile", name);
    return this.ask({ op: "profile", name, inputs });
  }

  /** Give the device's memory back. The model cannot be used afterwards. */
  async destroy() {
    const done = this.ask({ op: "destroy" });
    this.gone = "The model was destroyed.";
    await done;
    this.close();
  }

  /** @internal */
  fail(message) {
    this.gone = message;
    for (const id of [...this.waiting.keys()]) this.answered({ id, status: "failed", message });
  }
}

const settingOf = (settings, name) => settings[name] ?? settings[Object.keys(settings).find((key) => key.endsWith(`.${name}`))];

/** Return the full names of a setting. Throws where there is none, or the value is no number. */
function settingsNamed(settings, name, value) {
  const names = name in settings ? [name] : Object.keys(settings).filter((key) => key.endsWith(`.${name}`));
  if (!names.length) throw new WebtorchError(`set: there is no setting ${name}; the settings are ${Object.keys(settings).join(", ") || "none"}`);
  if (typeof value !== "number" || Number.isNaN(value)) throw new WebtorchError(`set: ${name} is a number, got ${value}`);
  return names;
}

/**
 * Load an export: `const m = await load("./")`, or `load({program, weights})` of files in memory.
 *
 * `persist` keeps the state in this browser while it trains, and `resume` goes on from there; `key` is its name. `keep` is how many
 * milliseconds of training may be lost with the device. `device` is "webgpu", "cpu", or "auto": WebGPU where it has a graphics card, else
 * the processor, on `threads` threads if the page is cross-origin isolated. `worker: false` runs everything in this thread; `script` is the address of
 * a classic worker, for pages that cannot start this module as one.
 */
export async function load(folder = "./", { worker = true, script = null, ...options } = {}) {
  let source = folder;
  if (typeof folder === "string" || folder instanceof URL) {
    const text = String(folder);
    source = { base: new URL(text.endsWith("/") ? text : `${text}/`, globalThis.location?.href ?? import.meta.url).href };
  }
  if (worker && globalThis.Worker) {
    const thread = script ? new Worker(script, { name: WORKER }) : new Worker(import.meta.url, { type: "module", name: WORKER });
    const model = new Model(thread, () => thread.terminate());
    thread.onerror = (event) => {
      event.preventDefault?.();
      model.fail(`The worker stopped: ${event.message || "runtime.js could not be started as a worker; load(folder, {worker: false}) runs without one"}`);
    };
    return model.begin(source, options).catch((error) => {
      thread.terminate();
      throw error;
    });
  }
  const { port1, port2 } = new MessageChannel();
  new Host(port2);
  return new Model(port1, () => port1.close()).begin(source, options);
}

if (globalThis.name === WORKER && typeof WorkerGlobalScope !== "undefined") new Host(globalThis);
