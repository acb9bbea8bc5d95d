/** The largest eigenvalues of a symmetric matrix, and their vectors. */

/**
 * A tridiagonal matrix similar to a symmetric one: Q^T A Q with Q = H0 H1 ..., H = I - 2 v v^T.
 * @typedef {object} Tridiagonal
 * @property {Float64Array} diagonal
 * @property {Float64Array} beside the diagonal: element i is at (i + 1, i) and (i, i + 1)
 * @property {Float64Array[]} reflectors the v of each H, without the zeros that it begins with
 */

/** Halvings of an interval until no number lies between its ends. */
const MAX_HALVINGS = 200;

/** Steps of inverse iteration: each divides the part of another vector by the distance of its eigenvalue. */
const ITERATIONS = 4;

/**
 * The largest eigenvalues, the largest first, and a vector of length 1 for each. Vectors of equal eigenvalues are
 * orthogonal.
 *
 * Householder's reduction to a tridiagonal matrix, bisection by Sturm's sequence, inverse iteration (Golub and Van Loan,
 * Matrix Computations, 8.3.1, 8.4.1 and 8.2.2): 4/3 size^3 operations.
 * @param {Float64Array[]} matrix symmetric
 * @param {number} count
 */
export function largestEigenpairs(matrix, count) {
  const scale = matrix.reduce((most, row) => row.reduce((largest, x) => Math.max(largest, Math.abs(x)), most), 0) || 1;
  const reduced = tridiagonal(matrix.map((row) => row.map((x) => x / scale))); // whose squares are numbers
  /** @type {Float64Array[]} */
  const found = [];
  const values = Array.from({ length: Math.min(count, matrix.length) }, (_, i) => {
    const value = eigenvalue(reduced, matrix.length - 1 - i);
    found.push(inverseIteration(reduced, value, found));
    return value;
  });
  return { values: values.map((value) => value * scale), vectors: found.map((vector) => reflected(vector, reduced.reflectors)) };
}

/**
 * @param {Float64Array[]} rows of the matrix, which are overwritten
 * @returns {Tridiagonal}
 */
function tridiagonal(rows) {
  const size = rows.length;
  const beside = new Float64Array(Math.max(0, size - 1));
  /** @type {Float64Array[]} */
  const reflectors = [];
  let rest = rows; // the rows and columns that are not tridiagonal yet
  for (let k = 0; k + 2 < size; k++) {
    const v = Float64Array.from(rest.slice(1), (row) => row[0]);
    const length = Math.sqrt(dotProduct(v, v));
    beside[k] = v[0] > 0 ? -length : length;
    v[0] -= beside[k];
    const norm = Math.sqrt(dotProduct(v, v)) || 1;
    reflectors.push(v.map((x) => x / norm));
    rest = rest.slice(1).map((row) => row.subarray(1));
    reflect(rest, reflectors[k]);
  }
  if (size > 1) beside[size - 2] = rows[size - 1][size - 2];
  return { diagonal: Float64Array.from(rows, (row, i) => row[i]), beside, reflectors };
}

/**
 * Reflects a matrix from both sides, H A H = A - 2 v w^T - 2 w v^T with w = A v - (v^T A v) v.
 * @param {Float64Array[]} rows
 * @param {Float64Array} v of length 1, or of zeros
 */
function reflect(rows, v) {
  const image = Float64Array.from(rows, (row) => dotProduct(row, v));
  const share = dotProduct(v, image);
  const w = image.map((x, i) => x - share * v[i]);
  rows.forEach((row, i) => {
    const [a, b] = [2 * v[i], 2 * w[i]];
    for (let j = 0; j < row.length; j++) row[j] -= a * w[j] + b * v[j];
  });
}

/**
 * The eigenvalue that `index` others are below.
 * @param {Tridiagonal} matrix
 * @param {number} index
 */
function eigenvalue(matrix, index) {
  const bound = largestRow(matrix);
  let [low, high] = [-bound, bound];
  for (let i = 0; i < MAX_HALVINGS; i++) {
    const middle = low + (high - low) / 2;
    if (middle === low || middle === high) break;
    if (countBelow(matrix, middle) > index) high = middle;
    else low = middle;
  }
  return high;
}

/**
 * The largest sum of a row's absolute elements: no eigenvalue is larger (Gershgorin).
 * @param {Tridiagonal} matrix
 */
function largestRow({ diagonal, beside }) {
  return diagonal.reduce((largest, x, i) => Math.max(largest, Math.abs(x) + Math.abs(beside[i - 1] ?? 0) + Math.abs(beside[i] ?? 0)), 0);
}

/**
 * How many eigenvalues are below a number: the negative pivots of the matrix minus it.
 * @param {Tridiagonal} matrix
 * @param {number} value
 */
function countBelow({ diagonal, beside }, value) {
  let [pivot, count] = [1, 0];
  diagonal.forEach((x, i) => {
    pivot = x - value - (i ? beside[i - 1] ** 2 / pivot : 0) || -Number.MIN_VALUE;
    if (pivot < 0) count++;
  });
  return count;
}

/**
 * A vector of length 1 of an eigenvalue, orthogonal to others.
 * @param {Tridiagonal} matrix
 * @param {number} value
 * @param {Float64Array[]} others
 */
function inverseIteration(matrix, value, others) {
  // No symmetry that a vector may have: it is orthogonal to none of those that are looked for.
  let vector = matrix.diagonal.map((_, i) => 1 + Math.sin(i + 1) / 2);
  for (let i = 0; i < ITERATIONS; i++) {
    for (const other of others) {
      const share = dotProduct(vector, other);
      vector = vector.map((x, j) => x - share * other[j]);
    }
    vector = normalized(vector);
    if (i + 1 < ITERATIONS) vector = normalized(solve(matrix, value, vector));
  }
  return vector;
}

/**
 * Solves (T - value I) x = right, by elimination with pivots; a pivot of zero becomes a very small one.
 * @param {Tridiagonal} matrix
 * @param {number} value
 * @param {Float64Array} right
 */
function solve({ diagonal, beside }, value, right) {
  const size = diagonal.length;
  const tiny = Number.EPSILON * (largestRow({ diagonal, beside, reflectors: [] }) || 1);
  // Of each row its element on the diagonal, the two after it, and its right side.
  const rows = Array.from(diagonal, (x, i) => [x - value, beside[i] ?? 0, 0, right[i]]);
  for (let i = 0; i + 1 < size; i++) {
    let below = [beside[i], rows[i + 1][0], rows[i + 1][1], rows[i + 1][3]];
    if (Math.abs(below[0]) > Math.abs(rows[i][0])) [rows[i], below] = [below, rows[i]];
    if (rows[i][0] === 0) rows[i][0] = tiny;
    const factor = below[0] / rows[i][0];
    rows[i + 1] = [below[1] - factor * rows[i][1], below[2] - factor * rows[i][2], 0, below[3] - factor * rows[i][3]];
  }
  const x = new Float64Array(size);
  for (let i = size - 1; i >= 0; i--) {
    const [pivot, next, afterNext, own] = rows[i];
    const rest = own - next * (x[i + 1] ?? 0) - afterNext * (x[i + 2] ?? 0);
    x[i] = rest / (Math.abs(pivot) < tiny ? tiny : pivot);
  }
  return x;
}

/**
 * A vector of the tridiagonal matrix as one of the matrix that was reduced.
 * @param {Float64Array} vector
 * @param {Float64Array[]} reflectors
 */
function reflected(vector, reflectors) {
  const result = vector.slice();
  for (const v of reflectors.toReversed()) {
    const end = result.subarray(-v.length);
    const share = 2 * dotProduct(end, v);
    end.forEach((x, i) => (end[i] = x - share * v[i]));
  }
  return result;
}

/** @param {Float64Array} vector */
function normalized(vector) {
  const norm = Math.sqrt(dotProduct(vector, vector)) || 1;
  return vector.map((x) => x / norm);
}

/**
 * @param {Float64Array} a
 * @param {Float64Array} b
 */
export function dotProduct(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}
