// The roofline of flashlib.models.roofline: from bytes, FLOPs and exponentials to seconds.
import { bytesOf, type Cost } from "./traffic";

/** A GPU's spec sheet; scripts/explorer_data.py writes them from flashlib.hardware. */
export interface Gpu {
  name: string;
  sramBytes: number;
  bytesPerS: number;
  matmulFlopsPerS: Record<string, number>;
  vectorFlopsPerS: number;
  expsPerS: number;
}
export type Part = "memory" | "matmul" | "vector" | "exp";
export interface Time { parts: Record<Part, number>; timeS: number; bound: Part | "nothing" }

export function timeOf(cost: Cost, gpu: Gpu, dtype: string): Time {
  const parts = {
    memory: bytesOf(cost) / gpu.bytesPerS,
    matmul: cost.matmulFlops / gpu.matmulFlopsPerS[dtype],
    vector: cost.vectorFlops / gpu.vectorFlopsPerS,
    exp: cost.exps / gpu.expsPerS,
  };
  let bound: Part = "memory";
  for (const name of Object.keys(parts) as Part[]) if (parts[name] > parts[bound]) bound = name;
  return { parts, timeS: parts[bound], bound: parts[bound] > 0 ? bound : "nothing" };
}

export const ridge = (gpu: Gpu, dtype: string) => gpu.matmulFlopsPerS[dtype] / gpu.bytesPerS;

/** The name of the rate that a choice of precision means on this GPU; null where its tensor cores have none. */
export function rateName(gpu: Gpu, precision: "16" | "32" | "fp8"): string | null {
  const names = { "16": ["bfloat16", "float16"], "32": ["float32"], fp8: ["float8"] }[precision];
  return names.find(name => name in gpu.matmulFlopsPerS) ?? null;
}
