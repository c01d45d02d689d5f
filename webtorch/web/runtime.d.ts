/** Types of runtime.js. */

export type TypedArray = Float32Array | Float64Array | Int32Array | Uint32Array | Int16Array | Uint16Array | Int8Array | Uint8Array | Uint8ClampedArray | BigInt64Array;
export type Nested = number | boolean | Nested[];
export type DType = "float32" | "float16" | "bfloat16" | "int64" | "int32" | "int16" | "int8" | "uint8" | "uint32" | "bool";

export interface Tensor {
  /** Row-major. 16-bit floats come as Float32Array, int64 as Int32Array, bool as Uint8Array of 0 and 1. */
  data: Float32Array | Int32Array | Uint32Array | Int16Array | Int8Array | Uint8Array;
  shape: number[];
  dtype: DType;
}

export type Input = TypedArray | Nested | { data: TypedArray | number[]; shape?: number[] };

export interface FileTensor {
  dtype: DType;
  shape: number[];
  bytes: Uint8Array;
}

export interface CallOptions {
  /** false: run, but read nothing back. Default true. */
  read?: boolean;
  /** Take the place of earlier calls with `latest` that have not started: they end as "aborted". */
  latest?: boolean;
  signal?: AbortSignal | null;
}

export interface Requirements {
  limits?: Record<string, number>;
  features?: string[];
}

export class WebtorchError extends Error {}

/** One exported function. Besides tensors, it returns the plain values that the Python function returned. */
export type Callable = (inputs?: Record<string, Input>, options?: CallOptions) => Promise<Record<string, Tensor>>;

/** How a call ended. A call is aborted when a newer one took its place, or its signal said so, before it ran. */
export type Result = { status: "completed"; outputs: Record<string, Tensor> } | { status: "aborted" | "failed"; error: WebtorchError };

export interface Description {
  arguments: { name: string; shape: number[]; dtype: DType; kind: "image" | "integers" | "numbers" }[];
  numbers: { name: string; value: number }[];
  returns: { name: string; shape: number[]; dtype: DType }[];
  /** Whether a call changes the state. */
  writes: boolean;
}

export interface Kept<Note = unknown> {
  /** The calls that had been made, and when it was kept (milliseconds since 1970). */
  calls: number;
  saved: number;
  note?: Note;
}

export interface Timed {
  rows: { kernel: string; grid: number[]; line: string; ms: number }[];
  outputs: Record<string, Tensor>;
  /** "device": the device's own clock; "page": each dispatch was waited for, so short ones look longer. */
  clock: "device" | "page";
}

export class Model {
  readonly title: string;
  readonly device: "webgpu" | "cpu";
  readonly deviceName: string;
  /** Why "auto" took what it took: no WebGPU, or one without a graphics card; else "". */
  readonly reason: string;
  readonly functions: Record<string, Description>;
  /** The settings and their values: {lr: 0.001}. */
  readonly settings: Record<string, number>;
  /** What `load` with `resume` went on from. */
  readonly resumed: Kept | null;
  /** Call a function; never throws. */
  run(name: string, inputs?: Record<string, Input>, options?: CallOptions): Promise<Result>;
  set(name: string, value: number): void;
  get(name: string): number | undefined;
  /** Parameters and optimizer state as a safetensors file. */
  state(): Promise<Uint8Array>;
  loadState(file: ArrayBuffer | Uint8Array): Promise<void>;
  /** Keep the state in this browser (IndexedDB), and go on from it. */
  save(options?: { key?: string; note?: unknown }): Promise<Kept>;
  resume(options?: { key?: string }): Promise<Kept | null>;
  forget(options?: { key?: string }): Promise<void>;
  profile(name: string, inputs?: Record<string, Input>): Promise<Timed>;
  destroy(): Promise<void>;
  /** The exported functions under their own names. */
  [name: string]: any;
}

/** The same in the thread that opened it, on a device of one's own. `functions[name].call(inputs, options)` calls a function of any name. */
export class Engine {
  readonly device: GPUDevice;
  readonly deviceName: string;
  readonly settings: Record<string, number>;
  set(name: string, value: number): void;
  get(name: string): number | undefined;
  state(): Promise<Uint8Array>;
  loadState(file: ArrayBuffer | Uint8Array): void;
  destroy(): void;
  [name: string]: any;
}

export interface LoadOptions {
  /** false: run in the page's own thread. */
  worker?: boolean;
  /** The address of a classic worker, for pages that cannot start runtime.js as a module. */
  script?: string | null;
  /** Keep the state in this browser while it trains; go on from there; under this name. */
  persist?: boolean;
  resume?: boolean;
  key?: string;
  /** Milliseconds of training that may be lost with the device. */
  keep?: number;
  /** By default ("auto") WebGPU where it has a graphics card, else the processor. */
  device?: "auto" | "webgpu" | "cpu";
  /** Threads on the processor, at most; more than one need a cross-origin isolated page. */
  threads?: number | null;
}

export function load(folder?: string | URL | { program: string | object; weights: ArrayBuffer; cpu?: [ArrayBuffer, ArrayBuffer] | null; cpuScript?: string | null }, options?: LoadOptions): Promise<Model>;
export function open(program: object, weights?: Record<string, FileTensor>, options?: { device?: GPUDevice | null }): Promise<Engine>;
export function openCpu(
  program: object,
  weights: Record<string, FileTensor>,
  files: { code: ArrayBuffer; constants: ArrayBuffer },
  options: { library: object; script?: string | null; threads?: number | null },
): Promise<Engine>;
/** Whether an adapter is a program on the processor. */
export function isSoftware(adapter: { info?: object; isFallbackAdapter?: boolean }): boolean;
export function requestDevice(requirements?: Requirements): Promise<GPUDevice>;
export function readSafetensors(file: ArrayBuffer | Uint8Array, what?: string): Record<string, FileTensor>;
export function writeSafetensors(tensors: Record<string, FileTensor>): Uint8Array;
export function fetchFile(base: string | URL, name: string): Promise<ArrayBuffer>;
