/** Runs many small programs on one device and reports, for each, its outputs or its error. */

import { fetchFile, open, readSafetensors, requestDevice } from "./runtime.js";

/** Return every program's kernels that the compiler has anything to say about, without making pipelines: cheap. */
export async function compile(programs) {
  const device = await requestDevice({});
  const seen = new Set();
  const found = [];
  let count = 0;
  for (const { name, program } of programs) {
    for (const kernel of program.kernels) {
      if (seen.has(kernel.code)) continue;
      seen.add(kernel.code);
      count += 1;
      device.pushErrorScope("validation");
      const module = device.createShaderModule({ code: kernel.code });
      const error = await device.popErrorScope();
      const { messages } = await module.getCompilationInfo();
      const bad = messages.map((m) => `${m.type} ${m.lineNum}:${m.linePos} ${m.message}`);
      if (error || bad.length) found.push({ name, kernel: kernel.name, messages: [error?.message, ...bad].filter(Boolean), code: kernel.code });
    }
  }
  device.destroy();
  return { count, found };
}

/** Return {name: {outputs}} or {name: {error}} of every program that `list.json` names. */
export async function run(programs, tensors) {
  const device = await requestDevice({});
  const results = {};
  for (const { name, program } of programs) {
    const prefix = `${name}/`;
    const weights = Object.fromEntries(program.states.map((s) => [s.name, tensors[prefix + s.name]]));
    try {
      const model = await open(program, weights, { device });
      const outputs = await model.compute();
      results[name] = { outputs: Object.fromEntries(Object.entries(outputs).map(([k, v]) => [k, Array.from(v.data)])) };
    } catch (error) {
      results[name] = { error: `${error.name}: ${error.message}` };
    }
  }
  return results;
}

export async function files() {
  const base = new URL("./", location.href);
  const programs = JSON.parse(new TextDecoder().decode(await fetchFile(base, "list.json")));
  const tensors = readSafetensors(await fetchFile(base, "list.safetensors"), "list.safetensors");
  return { programs, tensors };
}
