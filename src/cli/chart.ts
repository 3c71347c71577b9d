/** Charts of counts in characters. */

const levels = "▁▂▃▄▅▆▇█";

/** One character per count, or per group of counts if they do not fit: the highest is a full block, zero a dot. */
export function sparkline(counts: readonly number[], width: number): string {
  const perCharacter = Math.ceil(counts.length / width);
  const sums: number[] = [];
  for (let index = 0; index < counts.length; index += perCharacter) {
    sums.push(counts.slice(index, index + perCharacter).reduce((sum, count) => sum + count, 0));
  }
  const highest = Math.max(...sums);
  return sums
    .map((sum) => (sum === 0 ? "·" : levels[Math.ceil((sum / highest) * levels.length) - 1]))
    .join("");
}

const eighths = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/** A bar for `count` on a scale from 0 to `highest`, in eighths of a character. */
export function bar(count: number, highest: number, width: number): string {
  if (count === 0 || highest === 0) return "";
  const length = Math.max(1, Math.round((count / highest) * width * 8));
  return "█".repeat(length >> 3) + eighths[length & 7];
}
