/** Types of runtime.js. */

export type TypedArray = Float32Array | Float64Array | Int32Array | Uint32Array | Int16Array | Uint16Array | Int8Array | Uint8Array | Uint8ClampedArray | BigInt64Array;
export type Nested = number | boolean | Nested[];
export type DType = "float32" | "float16" | "bfloat16" | "int64" | "int32" | "int8" | "uint8" | "uint32" | "bool";

export interface Tensor {
  /** Row-major. 16-bit floats come as Float32Array, int64 as Int32Array, bool as Uint8Array of 0 and 1. */
  data: Float32Array | Int32Array | Uint32Array | Int8Array | Uint8Array;
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
}

export interface Requirements {
  limits?: Record<string, number>;
  features?: string[];
}

export class WebtorchError extends Error {}

/** One exported function. Besides tensors, it returns the plain values that the Python function returned. */
export type Callable = (inputs?: Record<string, Input>, options?: CallOptions) => Promise<Record<string, Tensor>>;

export class Model {
  readonly title: string;
  readonly device: GPUDevice;
  readonly deviceName: string;
  /** The settings and their values: {lr: 0.001}. */
  readonly settings: Record<string, number>;
  set(name: string, value: number): void;
  get(name: string): number | undefined;
  /** Parameters and optimizer state as a safetensors file. */
  state(): Promise<Uint8Array>;
  loadState(file: ArrayBuffer | Uint8Array): void;
  destroy(): void;
  /** The exported functions under their own names. */
  [name: string]: any;
}

export function load(folder?: string, options?: { device?: GPUDevice | null }): Promise<Model>;
export function open(program: object, weights?: Record<string, FileTensor>, options?: { device?: GPUDevice | null }): Promise<Model>;
export function requestDevice(requirements?: Requirements): Promise<GPUDevice>;
export function readSafetensors(file: ArrayBuffer, what?: string): Record<string, FileTensor>;
export function writeSafetensors(tensors: Record<string, FileTensor>): Uint8Array;
export function fetchFile(base: string | URL, name: string): Promise<ArrayBuffer>;
