import { inflateSync } from "node:zlib";

const woffHeaderBytes = 44;
const woffEntryBytes = 20;
const sfntHeaderBytes = 12;
const sfntEntryBytes = 16;

/** Converts a web font (WOFF 1.0) to OpenType, because browsers do not use WOFF files as system fonts. */
export function openTypeOf(woff: Buffer): Buffer {
  const tables = woff.readUInt16BE(12);
  const directory = Buffer.alloc(sfntHeaderBytes + tables * sfntEntryBytes);
  const power = Math.floor(Math.log2(tables));
  woff.copy(directory, 0, 4, 8);
  directory.writeUInt16BE(tables, 4);
  directory.writeUInt16BE(16 * 2 ** power, 6);
  directory.writeUInt16BE(power, 8);
  directory.writeUInt16BE(16 * (tables - 2 ** power), 10);
  const contents: Buffer[] = [];
  let offset = directory.length;
  for (let index = 0; index < tables; index++) {
    const entry = woff.subarray(woffHeaderBytes + index * woffEntryBytes);
    const [from, packed, length] = [entry.readUInt32BE(4), entry.readUInt32BE(8), entry.readUInt32BE(12)];
    const stored = woff.subarray(from, from + packed);
    const padded = Buffer.alloc(Math.ceil(length / 4) * 4);
    (packed < length ? inflateSync(stored) : stored).copy(padded);
    const at = sfntHeaderBytes + index * sfntEntryBytes;
    entry.copy(directory, at, 0, 4);
    entry.copy(directory, at + 4, 16, 20);
    directory.writeUInt32BE(offset, at + 8);
    directory.writeUInt32BE(length, at + 12);
    contents.push(padded);
    offset += padded.length;
  }
  return Buffer.concat([directory, ...contents]);
}
