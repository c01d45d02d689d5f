/**
 * Runs an export on the processor: WebAssembly over one memory, on as many threads as the page may have. runtime.js loads it
 * where there is no WebGPU. One file, no dependencies, no eval; the same file is the script of the threads.
 */

// Words at the start of the memory by which threads agree: a call's number, its next part, how many threads are still at it,
// then the function, the units, the units of one part and the address of the block.
const CALL = 16;
const [NUMBER, NEXT, BUSY, FUNCTION, UNITS, CHUNK, BLOCK, FAILED] = [0, 1, 2, 3, 4, 5, 6, 7].map((n) => CALL + n);
const PAGE = 1 << 16;
const STACK = 1 << 20;
const MOST_THREADS = 16;
const THREAD = "webtorch thread";
const COPY = -1;
// Turns that a thread looks for the next call before it sleeps: some 20 microseconds.
const PATIENCE = 4000;

const imports = (memory) => ({ env: { memory, fmodf: (a, b) => a % b, fmod: (a, b) => a % b } });

/** The functions of an instance, by number. */
function functionsOf(instance, stack) {
  instance.exports.__stack_pointer.value = stack;
  const out = [];
  for (let n = 0; `f${n}` in instance.exports; n++) out.push(instance.exports[`f${n}`]);
  return out;
}

/** Take parts of the present call until there are none. */
function work(functions, words) {
  const f = functions[words[FUNCTION]];
  const units = words[UNITS];
  const chunk = words[CHUNK];
  const block = words[BLOCK];
  for (;;) {
    const begin = Atomics.add(words, NEXT, 1) * chunk;
    if (begin >= units) return;
    f(begin, Math.min(begin + chunk, units), block);
  }
}

// --- a thread ---------------------------------------------------------------------------------------------------------

function thread({ module, memory, stack }) {
  const functions = functionsOf(new WebAssembly.Instance(module, imports(memory)), stack);
  globalThis.postMessage("ready");
  const words = new Int32Array(memory.buffer);
  let seen = 0;
  for (;;) {
    for (let turn = 0; turn < PATIENCE && Atomics.load(words, NUMBER) === seen; turn++);
    Atomics.wait(words, NUMBER, seen);
    seen = Atomics.load(words, NUMBER);
    try {
      work(functions, words);
    } catch {
      Atomics.store(words, FAILED, 1);
    }
    if (Atomics.sub(words, BUSY, 1) === 1) Atomics.notify(words, BUSY);
  }
}

if (globalThis.name === THREAD) {
  globalThis.onmessage = ({ data }) => thread(data);
}

// --- the engine -------------------------------------------------------------------------------------------------------

/** Open a program on the processor: what Engine of runtime.js is on WebGPU. `tools` are parts of runtime.js. */
export async function openEngine(tools, program, weights, files) {
  const { Opened, WebtorchError, argumentValues, decode, encodeInputs, fits, indexError, nbytesOf, writeSafetensors } = tools;

  class CpuEngine extends Opened {
    constructor() {
      // A call keeps this thread: one at a time, so that newer ones can take the place of those that wait.
      super(program, 1);
      this.threads = [];
      // What callers of the other engine wait for; here a call is done when it returns.
      this.device = { queue: { onSubmittedWorkDone: async () => {} }, destroy: () => this.close() };
    }

    /** @internal `threads` is how many may be used; more than one need a page that is isolated (COOP and COEP). */
    async open({ code, constants, threads = null, script = null }) {
      const { cpu } = this.program;
      const shared = globalThis.crossOriginIsolated === true && typeof SharedArrayBuffer !== "undefined";
      const count = shared && script ? Math.max(1, Math.min(threads ?? globalThis.navigator?.hardwareConcurrency ?? 1, MOST_THREADS)) : 1;
      const bytes = new Uint8Array(code).slice();
      // A module says whether its memory is shared.
      if (!shared) bytes[cpu.shared] = 1;
      const pages = Math.ceil((cpu.memory + count * STACK) / PAGE);
      try {
        this.memory = new WebAssembly.Memory({ initial: pages, maximum: pages, shared });
        const module = await WebAssembly.compile(bytes);
        const [stamp] = WebAssembly.Module.customSections(module, "webtorch.export");
        fits(program, stamp && new TextDecoder().decode(stamp), "cpu.wasm");
        this.code = functionsOf(await WebAssembly.instantiate(module, imports(this.memory)), cpu.memory + STACK);
        if (count > 1) await Promise.all(Array.from({ length: count - 1 }, (_, n) => this.start(module, script, cpu.memory + (n + 2) * STACK)));
      } catch (error) {
        this.close();
        if (error instanceof WebtorchError) throw error;
        const many = error instanceof RangeError ? `There is not enough memory for the program, which needs ${Math.ceil(pages / 16)} MB` : "The program for the processor could not be started";
        throw new WebtorchError(`${many}: ${error.message}`, { cause: error });
      }
      this.bytes = new Uint8Array(this.memory.buffer);
      this.view = new DataView(this.memory.buffer);
      this.words = new Int32Array(this.memory.buffer);
      this.deviceName = `the processor (${count === 1 ? "1 thread" : `${count} threads`})`;
      const expected = cpu.constants.reduce((sum, n, i) => sum + (i % 2 ? n : 0), 0);
      // The stamp of the export comes last.
      const after = constants.byteLength - expected;
      if (after === 0 || after === program.stamp?.length) fits(program, new TextDecoder().decode(new Uint8Array(constants, expected)), "cpu.bin");
      else throw new WebtorchError(`cpu.bin: it has ${constants.byteLength} bytes, program.json expects ${expected}: the file is damaged, or one of another export`);
      let at = 0;
      for (let i = 0; i < cpu.constants.length; i += 2) {
        const [address, length] = cpu.constants.slice(i, i + 2);
        this.bytes.set(new Uint8Array(constants, at, length), address);
        at += length;
      }
      this.begin(weights);
      for (const [name, description] of Object.entries(this.program.functions)) {
        this.add(name, { call: (inputs, options) => this.call(name, description, inputs, options), profile: (inputs) => this.profile(name, description, inputs) });
      }
      return this;
    }

    start(module, script, stack) {
      return new Promise((resolve, reject) => {
        const worker = new Worker(script, { type: "module", name: THREAD });
        this.threads.push(worker);
        worker.onerror = (event) => reject(new Error(event.message || "a thread could not be started"));
        worker.onmessage = resolve;
        worker.postMessage({ module, memory: this.memory, stack });
      });
    }

    // --- calls ---

    async call(name, description, inputs = {}, { read = true } = {}) {
      this.prepare(name, description, inputs);
      const { calls } = description.cpu;
      for (let i = 0; i < calls.length; i += 4) this.step(calls, i);
      return this.finish(description, read);
    }

    async profile(name, description, inputs = {}) {
      this.prepare(name, description, inputs);
      const { calls, names, lines } = description.cpu;
      const rows = [];
      for (let i = 0; i < calls.length; i += 4) {
        const started = performance.now();
        this.step(calls, i);
        rows.push({ kernel: names[i / 4], grid: calls[i] === COPY ? [] : [calls[i + 1]], line: lines[i / 4], ms: performance.now() - started });
      }
      return { rows, outputs: this.finish(description, true), clock: "page" };
    }

    prepare(name, description, inputs) {
      this.check();
      const encoded = encodeInputs(name, description, inputs);
      const values = argumentValues(this, description, inputs);
      encoded.forEach((bytes, i) => this.fill(description.cpu.inputs[i], new Uint8Array(bytes), description.arguments[i].dtype));
      const { patches } = description.cpu;
      for (let i = 0; i < patches.length; i += 3) {
        const value = values[patches[i + 1]];
        if (patches[i + 2]) this.view.setFloat64(patches[i], value, true);
        else this.view.setBigInt64(patches[i], BigInt(value), true);
      }
    }

    step(calls, i) {
      const number = calls[i];
      if (number === COPY) {
        this.bytes.copyWithin(calls[i + 1], calls[i + 2], calls[i + 2] + calls[i + 3]);
        return;
      }
      const [units, chunk, block] = [calls[i + 1], calls[i + 2], calls[i + 3]];
      const { words } = this;
      if (chunk >= units || !this.threads.length) {
        try {
          this.code[number](0, units, block);
        } catch (error) {
          this.failed(error.message);
        }
        return;
      }
      words[FUNCTION] = number;
      words[UNITS] = units;
      words[CHUNK] = chunk;
      words[BLOCK] = block;
      words[NEXT] = 0;
      Atomics.store(words, BUSY, this.threads.length);
      Atomics.add(words, NUMBER, 1);
      Atomics.notify(words, NUMBER);
      try {
        work(this.code, words);
      } catch {
        words[FAILED] = 1;
      }
      for (let turn = 0; Atomics.load(words, BUSY) > 0; turn++) {
        // The page's own thread may not sleep.
        const busy = turn > PATIENCE && !globalThis.document ? Atomics.load(words, BUSY) : 0;
        if (busy > 0) Atomics.wait(words, BUSY, busy, 1);
      }
      if (words[FAILED]) this.failed("a thread stopped");
    }

    failed(why) {
      throw (this.failure = new WebtorchError(`The program failed on the processor (${why}).`));
    }

    finish(description, read) {
      const { returns, sites, status } = description.cpu;
      this.random = BigInt.asUintN(64, this.random + BigInt(description.draws));
      if (status) {
        const site = this.view.getInt32(status, true);
        const value = this.view.getBigInt64(status + 8, true);
        this.view.setInt32(status, 0, true);
        if (site > 0) throw indexError(sites, site, value);
      }
      const out = { ...description.constants };
      if (!read) return {};
      description.returns.forEach((entry, i) => {
        const { dtype, bytes } = entry;
        out[entry.name] = { data: decode(this.narrow(returns[i], bytes, dtype, entry.name), 0, entry), shape: entry.shape, dtype };
      });
      return out;
    }

    // --- memory: integers of 64 bits are 64 bits wide here, and 32 on the way in and out ---

    fill(address, bytes, dtype) {
      if (dtype !== "int64") {
        this.bytes.set(bytes, address);
        return;
      }
      const narrow = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 2);
      const wide = new BigInt64Array(this.memory.buffer, address, narrow.length);
      for (let i = 0; i < narrow.length; i++) wide[i] = BigInt(narrow[i]);
    }

    narrow(address, nbytes, dtype, name) {
      if (dtype !== "int64") return this.bytes.slice(address, address + nbytes).buffer;
      const wide = new BigInt64Array(this.memory.buffer, address, nbytes >> 2);
      const i = wide.findIndex((value) => BigInt.asIntN(32, value) !== value);
      if (i >= 0) throw new WebtorchError(`output ${name}: element ${i} is ${wide[i]}, beyond the 32 bits that integers have in a page`);
      return Int32Array.from(wide, Number).buffer;
    }

    // --- state ---

    put(i, bytes) {
      const { cpu, states } = this.program;
      this.fill(cpu.states[i], bytes, states[i].dtype);
    }

    async state() {
      this.check();
      const { cpu, states } = this.program;
      const tensors = {};
      states.forEach(({ name, dtype, shape }, i) => {
        const from = cpu.states[i];
        tensors[name] = { dtype, shape, bytes: this.bytes.slice(from, from + nbytesOf(dtype, shape)) };
      });
      return writeSafetensors(tensors);
    }

    close() {
      for (const worker of this.threads) worker.terminate();
      this.threads = [];
      this.memory = this.bytes = this.view = this.words = null;
    }

    destroy() {
      this.failure = new WebtorchError("The model was destroyed.");
      this.close();
    }
  }

  return new CpuEngine().open(files);
}
