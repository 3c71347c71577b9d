/** Makes one attempt of a delivery: builds the request, sends it, and turns the response into the result. */

import { encodeId } from "../core/ids.ts";
import type { MakeAttempt } from "../core/webhook.ts";
import type { Endpoints } from "./endpoints.ts";
import { payloadOf } from "./payload.ts";
import { retryAfterSeconds, secondsUntilNext } from "./schedule.ts";

export function createMakeAttempt(endpoints: Endpoints): MakeAttempt {
  return async (due, signal) => {
    const { verificationId, number, resends, startedAt } = due;
    const exchange = await endpoints.send(
      {
        url: due.url,
        id: encodeId("evt_", verificationId),
        timestamp: Math.floor(startedAt / 1000),
        body: payloadOf(due.event),
        secrets: due.secrets,
      },
      signal,
    );
    const { durationMs, status, error, answer } = exchange;
    // Times are the database's: the attempt's start by its clock, plus the measured duration.
    const retryAfter = retryAfterSeconds(exchange.retryAfter, startedAt + durationMs);
    return {
      verificationId,
      number,
      resends,
      durationMs,
      status,
      error,
      answer,
      gone: status === 410,
      retryInSeconds: error === null ? null : secondsUntilNext(due.failures + 1, retryAfter),
    };
  };
}
