// The tiles of an attention matrix under a mask: flashlib.masks.Window and _Grid of flashlib.models.traffic.

/** Keys before and after the one that a query lies on; null is no bound. */
export interface Window { left: number | null; right: number | null }

/** One row of tiles: which tiles of keys it visits, and which of those no mask cuts through. */
export interface Row {
  b: number;          // rows
  begin: number;      // the first visited tile of keys
  visited: number;    // how many
  keys: number;       // keys in them
  fullFrom: number;   // the first key of the unmasked tiles
  full: number;       // keys in unmasked tiles
  c: number;          // keys in the largest visited tile
  starts: number;     // visited tiles in which some row sees its first key
}

export interface Grid {
  rows: Row[];
  touched: number;    // rows, once per visited tile
  area: number;       // pairs of a row and a key in visited tiles
  masked: number;     // those of them in tiles that the mask cuts through
  keys: number;       // keys, once per row of tiles
  visits: number;     // visited tiles
}

export const clip = (x: number, low: number, high: number) => Math.min(Math.max(x, low), high);
export const ceilDiv = (a: number, b: number) => Math.ceil(a / b);

export function windowOf(causal: boolean, window: Window | null): Window {
  const given = window ?? { left: null, right: null };
  return causal ? { left: given.left, right: 0 } : given;
}

/** [first, stop] of the keys that a row sees; the last query lies on the last key. */
export function keysOf(w: Window, row: number, Nq: number, Nk: number): [number, number] {
  const left = w.left === null ? Nq + Nk : Math.min(w.left, Nq + Nk);
  const right = w.right === null ? Nq + Nk : Math.min(w.right, Nq + Nk);
  const on = row + Nk - Nq;
  return [clip(on - left, 0, Nk), clip(on + right + 1, 0, Nk)];
}

/** A group of query heads that share a head of keys are rows of the same tiles, query by query. */
export function gridOf(Nq: number, Nk: number, Br: number, Bc: number, w: Window, group = 1): Grid {
  const grid: Grid = { rows: [], touched: 0, area: 0, masked: 0, keys: 0, visits: 0 };
  for (let first = 0; first < Nq * group; first += Br) {
    const b = Math.min(Br, Nq * group - first), query = (row: number) => Math.floor(row / group);
    const [topFrom, topTo] = keysOf(w, query(first), Nq, Nk), [lastFrom, lastTo] = keysOf(w, query(first + b - 1), Nq, Nk);
    const begin = Math.floor(topFrom / Bc), visited = ceilDiv(lastTo, Bc) - begin;
    const keys = Math.min((begin + visited) * Bc, Nk) - Math.min(begin * Bc, Nk);
    const fullFrom = ceilDiv(lastFrom, Bc) * Bc, fullTo = topTo === Nk ? Nk : Math.floor(topTo / Bc) * Bc;
    const full = Math.max(fullTo - fullFrom, 0);
    const starts = visited > 0 ? Math.floor(lastFrom / Bc) - begin + 1 : 0;
    grid.rows.push({ b, begin, visited, keys, fullFrom, full, c: Math.min(Bc, keys), starts });
    grid.touched += visited * b;
    grid.area += b * keys;
    grid.masked += b * (keys - full);
    grid.keys += keys;
    grid.visits += visited;
  }
  return grid;
}
