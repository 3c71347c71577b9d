/** HTTP/2 as bytes: frames that no library would send (RFC 9113), with literal headers (RFC 7541, 6.2.2). */

export const frameTypes = {
  data: 0,
  headers: 1,
  rstStream: 3,
  settings: 4,
  ping: 6,
  goAway: 7,
  windowUpdate: 8,
  continuation: 9,
} as const;
export const endStream = 0x1;
export const endHeaders = 0x4;

export function frame(
  type: keyof typeof frameTypes,
  flags: number,
  streamId: number,
  payload: Uint8Array = new Uint8Array(),
): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = frameTypes[type];
  head[4] = flags;
  head.writeUInt32BE(streamId, 5);
  return Buffer.concat([head, payload]);
}

/** The first bytes of a client. */
export const preface = Buffer.concat([
  Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
  frame("settings", 0, 0),
]);

export function headerBlock(fields: Readonly<Record<string, string>>): Buffer {
  return Buffer.concat(
    Object.entries(fields).flatMap(([name, value]) => [Buffer.of(0), text(name), text(value)]),
  );
}

/** The headers of a gRPC call. */
export function callHeaders(path: string, more: Readonly<Record<string, string>> = {}): Buffer {
  return headerBlock({
    ":method": "POST",
    ":scheme": "http",
    ":path": path,
    ":authority": "localhost",
    "content-type": "application/grpc",
    te: "trailers",
    ...more,
  });
}

/** The length with a prefix of seven bits, then the plain bytes. */
function text(value: string): Buffer {
  const bytes = Buffer.from(value, "latin1");
  const length: number[] = [];
  if (bytes.length < 127) length.push(bytes.length);
  else {
    length.push(127);
    let rest = bytes.length - 127;
    for (; rest >= 128; rest >>= 7) length.push((rest & 127) | 128);
    length.push(rest);
  }
  return Buffer.concat([Buffer.from(length), bytes]);
}
