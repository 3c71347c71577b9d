import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError, type ConnectRouter } from "@connectrpc/connect";
import {
  Health,
  HealthCheckResponse_ServingStatus as ServingStatus,
} from "../gen/proto/health/v1/health_pb.ts";

const watchIntervalMs = 1_000;

/** grpc.health.v1.Health for the whole server (the empty name) and each of its services. */
export function healthRoutes(
  router: ConnectRouter,
  services: readonly string[],
  isReady: () => Promise<boolean>,
): void {
  const names = new Set(["", ...services]);

  async function statusNow() {
    return (await isReady()) ? ServingStatus.SERVING : ServingStatus.NOT_SERVING;
  }

  router.service(Health, {
    async check({ service }) {
      if (!names.has(service)) throw new ConnectError("no such service", Code.NotFound);
      return { status: await statusNow() };
    },

    async list() {
      const status = await statusNow();
      return { statuses: Object.fromEntries([...names].map((name) => [name, { status }])) };
    },

    async *watch({ service }, { signal }) {
      let last: ServingStatus | undefined;
      while (!signal.aborted) {
        const status = names.has(service) ? await statusNow() : ServingStatus.SERVICE_UNKNOWN;
        if (status !== last) yield { status };
        last = status;
        await delay(watchIntervalMs, undefined, { signal }).catch(() => {});
      }
    },
  });
}
