/** Loaded before a process's own code (`--import`): shifts the clock that JavaScript sees by CLOCK_AHEAD_MS. */

import crypto from "node:crypto";
import { syncBuiltinESMExports } from "node:module";

const aheadMs = Number(process.env.CLOCK_AHEAD_MS);
const RealDate = Date;

class SkewedDate extends RealDate {
  constructor(...args: [] | ConstructorParameters<DateConstructor>) {
    if (args.length === 0) super(RealDate.now() + aheadMs);
    else super(...args);
  }

  static override now(): number {
    return RealDate.now() + aheadMs;
  }
}

globalThis.Date = SkewedDate as DateConstructor;

// A UUIDv7 begins with a 48-bit timestamp, which Node takes from the real clock.
const randomUuid = crypto.randomUUIDv7;
crypto.randomUUIDv7 = (options) => {
  const uuid = randomUuid(options);
  const time = Number.parseInt(uuid.slice(0, 8) + uuid.slice(9, 13), 16) + aheadMs;
  const hex = time.toString(16).padStart(12, "0");
  return `${hex.slice(0, 8)}-${hex.slice(8)}${uuid.slice(13)}` as typeof uuid;
};
syncBuiltinESMExports();
