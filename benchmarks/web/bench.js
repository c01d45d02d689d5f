/** Times webtorch and its peers on the same two networks, turn by turn: on one adapter, or on the processor in WebAssembly. */

import { fetchFile, load, readSafetensors } from "./digits/runtime.js";

const post = (kind, value) => fetch(kind, { method: "POST", body: JSON.stringify(value) });
const settings = await (await fetch("settings.json")).json();
const onCpu = settings.device === "cpu";
const threads = globalThis.crossOriginIsolated ? navigator.hardwareConcurrency : 1;

async function files(name) {
  const base = new URL(`./${name}/`, location.href);
  const typed = (file) => Object.fromEntries(Object.entries(readSafetensors(file)).map(([k, { dtype, shape, bytes }]) => {
    const data = dtype === "int64" ? Int32Array.from(new BigInt64Array(bytes.slice().buffer), Number) : new Float32Array(bytes.slice().buffer);
    return [k, { data, shape }];
  }));
  const weights = typed(await fetchFile(base, "weights.safetensors"));
  const examples = typed(await fetchFile(base, "examples.safetensors"));
  const parameters = Object.fromEntries(Object.entries(weights).filter(([k]) => k.startsWith("model.") && !/running|tracked/.test(k)).map(([k, v]) => [k.slice(6), v]));
  return { parameters, x: examples["train/0.x"], y: examples["train/0.y"] };
}

// Each maker returns {infer, train}: async functions of one step; train returns the loss.
const makers = {
  async webtorch(name) {
    const m = await load(`./${name}/`, { device: settings.device });
    const { x, y } = await files(name);
    return {
      async infer() {
        await m.infer({ [m.functions.infer.arguments[0].name]: x });
      },
      train: async () => (await m.train({ x, y })).loss.data[0],
    };
  },

  async tfjs(name) {
    await script("node_modules/@tensorflow/tfjs/dist/tf.min.js");
    const backend = onCpu ? "wasm" : "webgpu";
    await script(`node_modules/@tensorflow/tfjs-backend-${backend}/dist/tf-backend-${backend}.min.js`);
    const { tf } = globalThis;
    if (onCpu) {
      tf.wasm.setWasmPaths(new URL("./node_modules/@tensorflow/tfjs-backend-wasm/dist/", location.href).href);
      tf.wasm.setThreadsCount(threads);
    }
    await tf.setBackend(backend);
    await tf.ready();
    if (tf.getBackend() !== backend) throw new Error(`backend ${tf.getBackend()}`);
    const { parameters, x, y } = await files(name);
    const p = {};
    for (const [k, { data, shape }] of Object.entries(parameters)) {
      const t = tf.tensor(data, shape);
      // Its layouts: height, width, in, out; in, out.
      const linear = shape.length === 2 && !/^(token|place)/.test(k);
      p[k] = tf.variable(shape.length === 4 ? t.transpose([2, 3, 1, 0]) : linear ? t.transpose() : t);
    }
    const norm = (v, k, axes) => {
      const { mean, variance } = tf.moments(v, axes, true);
      return v.sub(mean).div(variance.add(1e-5).sqrt()).mul(p[`${k}.weight`]).add(p[`${k}.bias`]);
    };
    const linear = (v, k) => {
      const flat = v.reshape([-1, v.shape.at(-1)]);
      return flat.matMul(p[`${k}.weight`]).add(p[`${k}.bias`]).reshape([...v.shape.slice(0, -1), p[`${k}.weight`].shape[1]]);
    };
    const conv = (v, i) => norm(tf.conv2d(v, p[`conv${i}.weight`], 1, "same").add(p[`conv${i}.bias`]), `norm${i}`, [0, 1, 2]).relu();
    const digits = (v) => {
      let h = conv(v, 0);
      h = tf.maxPool(conv(h, 1), 2, 2, "valid");
      h = tf.maxPool(conv(h, 2), 2, 2, "valid");
      return linear(linear(h.transpose([0, 3, 1, 2]).reshape([h.shape[0], -1]), "fc0").relu(), "fc1");
    };
    const { heads, layers } = settings;
    const gpt = (v) => {
      const [n, t] = v.shape;
      let h = tf.gather(p["token.weight"], v).add(p["place.weight"]);
      const w = h.shape[2];
      const mask = tf.linalg.bandPart(tf.ones([t, t]), -1, 0).sub(1).mul(1e9);
      for (let i = 0; i < layers; i++) {
        const b = `blocks.${i}.`;
        const parts = linear(norm(h, `${b}norm0`, [-1]), `${b}qkv`).reshape([n, t, 3, heads, w / heads]).transpose([2, 0, 3, 1, 4]);
        const [q, k, u] = tf.unstack(parts);
        const s = tf.matMul(q, k, false, true).mul(1 / Math.sqrt(w / heads)).add(mask);
        h = h.add(linear(tf.matMul(tf.softmax(s), u).transpose([0, 2, 1, 3]).reshape([n, t, w]), `${b}out`));
        const a = linear(norm(h, `${b}norm1`, [-1]), `${b}up`);
        const g = a.mul(0.5).mul(a.add(a.mul(a).mul(a).mul(0.044715)).mul(Math.sqrt(2 / Math.PI)).tanh().add(1));
        h = h.add(linear(g, `${b}down`));
      }
      return linear(norm(h, "norm", [-1]), "head");
    };
    const forward = name === "digits" ? digits : gpt;
    const xs = name === "digits" ? tf.tensor(x.data, x.shape).transpose([0, 2, 3, 1]) : tf.tensor(x.data, x.shape, "int32");
    const classes = name === "digits" ? 10 : settings.vocabulary;
    const hot = tf.oneHot(tf.tensor1d(y.data, "int32"), classes).toFloat();
    const optimizer = tf.train.adam(settings.lr);
    return {
      async infer() {
        const out = tf.tidy(() => forward(xs));
        await out.data();
        out.dispose();
      },
      async train() {
        const loss = optimizer.minimize(() => tf.losses.softmaxCrossEntropy(hot, forward(xs).reshape([-1, classes])), true);
        const [value] = await loss.data();
        loss.dispose();
        return value;
      },
    };
  },

  async onnxruntime(name) {
    const ort = await import("./node_modules/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs");
    ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", location.href).href;
    ort.env.wasm.numThreads = onCpu ? threads : 1;
    const session = await ort.InferenceSession.create(`./${name}.onnx`, { executionProviders: [onCpu ? "wasm" : "webgpu"] });
    const { x } = await files(name);
    const tensor = name === "digits" ? new ort.Tensor("float32", x.data, x.shape) : new ort.Tensor("int64", BigInt64Array.from(x.data, BigInt), x.shape);
    return {
      async infer() {
        const out = await session.run({ [session.inputNames[0]]: tensor });
        await out[session.outputNames[0]].getData();
      },
    };
  },

  async jax(name) {
    const jax = await import("./node_modules/@jax-js/jax/dist/index.js");
    const { numpy: np, lax, nn, tree, jit, valueAndGrad } = jax;
    const backend = onCpu ? "wasm" : "webgpu";
    const ready = await jax.init(backend);
    if (!ready.includes(backend)) throw new Error(`no ${backend}`);
    jax.defaultDevice(backend);
    const { parameters, x, y } = await files(name);
    // It owns arrays by reference counts: a use takes the array, `.ref` keeps it.
    const leaf = ({ data, shape }) => np.array(data).reshape(shape);
    let params = Object.fromEntries(Object.entries(parameters).map(([k, v]) => [k, leaf(v)]));
    const norm = (p, v, k, axes, shape) => {
      const mean = np.mean(v.ref, axes, { keepdims: true });
      const centred = v.sub(mean);
      const variance = np.mean(centred.ref.mul(centred.ref), axes, { keepdims: true });
      return centred.div(np.sqrt(variance.add(1e-5))).mul(p[`${k}.weight`].reshape(shape)).add(p[`${k}.bias`].reshape(shape));
    };
    const linear = (p, v, k) => np.matmul(v, np.transpose(p[`${k}.weight`])).add(p[`${k}.bias`]);
    const conv = (p, v, i) => {
      const out = lax.conv(v, p[`conv${i}.weight`], [1, 1], "SAME").add(p[`conv${i}.bias`].reshape([-1, 1, 1]));
      return nn.relu(norm(p, out, `norm${i}`, [0, 2, 3], [-1, 1, 1]));
    };
    const pool = (v) => {
      const [n, c, h, w] = v.shape;
      return np.max(v.reshape([n, c, h / 2, 2, w / 2, 2]), [3, 5]);
    };
    const digits = (p, v) => {
      const h = pool(conv(p, pool(conv(p, conv(p, v, 0), 1)), 2));
      return linear(p, nn.relu(linear(p, h.reshape([h.shape[0], -1]), "fc0")), "fc1");
    };
    const { heads, layers, vocabulary } = settings;
    const gpt = (p, v) => {
      const [n, t] = v.shape;
      // As products with one row of ones: its gather has no gradient of its own kernel.
      let h = np.matmul(nn.oneHot(v, vocabulary), p["token.weight"]).add(p["place.weight"]);
      const w = h.shape[2];
      for (let i = 0; i < layers; i++) {
        const b = `blocks.${i}.`;
        const parts = linear(p, norm(p, h.ref, `${b}norm0`, -1, [-1]), `${b}qkv`).reshape([n, t, 3, heads, w / heads]);
        const [q, k, u] = np.split(parts, 3, 2).map((s) => s.reshape([n, t, heads, w / heads]));
        const y = nn.dotProductAttention(q, k, u, { isCausal: true }).reshape([n, t, w]);
        h = h.add(linear(p, y, `${b}out`));
        const g = nn.gelu(linear(p, norm(p, h.ref, `${b}norm1`, -1, [-1]), `${b}up`), { approximate: true });
        h = h.add(linear(p, g, `${b}down`));
      }
      return linear(p, norm(p, h, "norm", -1, [-1]), "head");
    };
    const forward = name === "digits" ? digits : gpt;
    const classes = name === "digits" ? 10 : vocabulary;
    const xs = name === "digits" ? leaf(x) : np.array(x.data).reshape(x.shape);
    const hot = nn.oneHot(np.array(y.data), classes);
    const infer = jit((p, v) => forward(p, v));
    const loss = (p, v, target) => np.sum(nn.logSoftmax(forward(p, v).reshape([-1, classes])).mul(target)).mul(-1 / y.data.length);
    const step = jit((p, m, s, a, b, v, target) => {
      const [value, g] = valueAndGrad(loss)(tree.ref(p), v, target);
      const names = Object.keys(p);
      const out = { p: {}, m: {}, s: {} };
      for (const k of names) {
        const m1 = m[k].mul(0.9).add(g[k].ref.mul(0.1));
        const s1 = s[k].mul(0.999).add(g[k].ref.mul(g[k]).mul(0.001));
        out.p[k] = p[k].sub(m1.ref.mul(a.ref).div(np.sqrt(s1.ref.mul(b.ref)).add(1e-8)));
        out.m[k] = m1;
        out.s[k] = s1;
      }
      a.dispose();
      b.dispose();
      return { value, ...out };
    });
    const zeros = () => tree.map((v) => np.zeros(v.shape), tree.ref(params));
    let [m, s, t] = [zeros(), zeros(), 0];
    return {
      async infer() {
        await infer(tree.ref(params), xs.ref).data();
      },
      async train() {
        t += 1;
        const out = step(params, m, s, np.array([settings.lr / (1 - 0.9 ** t)]), np.array([1 / (1 - 0.999 ** t)]), xs.ref, hot.ref);
        [params, m, s] = [out.p, out.m, out.s];
        return (await out.value.data())[0];
      },
    };
  },
};

const loaded = new Set();
function script(src) {
  if (loaded.has(src)) return Promise.resolve();
  loaded.add(src);
  return new Promise((resolve, reject) => document.head.append(Object.assign(document.createElement("script"), { src, onload: resolve, onerror: () => reject(new Error(`${src} is missing: npm install`)) })));
}

/** Return the milliseconds of a call, on average and the fastest. */
async function turn(run, seconds) {
  const started = performance.now();
  const times = [];
  do {
    const before = performance.now();
    await run();
    times.push(performance.now() - before);
  } while (performance.now() - started < 1e3 * seconds);
  return [times.reduce((sum, t) => sum + t, 0) / times.length, Math.min(...times)];
}

const found = { rows: [], problems: {}, firstLosses: {} };
for (const name of settings.models) {
  const sides = {};
  for (const library of settings.libraries) {
    const started = performance.now();
    try {
      const side = await makers[library](name);
      const losses = [];
      try {
        if (side.train) for (let i = 0; i < 3; i++) losses.push(await side.train());
      } catch (error) {
        // TensorFlow.js has no gradients of convolutions on the processor, for one.
        found.problems[`${name} ${library}, training`] = String(error?.message ?? error).slice(0, 400);
        delete side.train;
      }
      await side.infer();
      found.firstLosses[`${name} ${library}`] = losses;
      sides[library] = side;
      await post("progress", { name, library, losses, ready: performance.now() - started });
    } catch (error) {
      found.problems[`${name} ${library}`] = String(error?.message ?? error).slice(0, 400);
      await post("progress", { name, library, error: found.problems[`${name} ${library}`] });
    }
  }
  for (const kind of ["infer", "train"]) {
    const [times, best] = [{}, {}];
    for (let round = 0; round < settings.rounds; round++) {
      for (const [library, side] of Object.entries(sides)) {
        if (!side[kind]) continue;
        const [mean, fastest] = await turn(side[kind], settings.seconds);
        (times[library] ??= []).push(mean);
        best[library] = Math.min(best[library] ?? Infinity, fastest);
      }
    }
    found.rows.push({ name, kind, times, best });
    await post("progress", { name, kind, times });
  }
}
await post("report", found);
