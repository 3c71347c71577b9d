import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import type { DestinationNumber } from "../core/directory.ts";
import { encodeId } from "../core/ids.ts";
import {
  DestinationNumberSchema,
  DestinationNumberService,
} from "../gen/proto/phoneproof/v1/destination_number_pb.ts";
import type { AsAdmin } from "./as-admin.ts";
import { environmentMessage, environmentOf, type Found, requiredEnvironmentOf } from "./messages.ts";

/** Serves what an admin token may do with destination numbers. */
export function destinationNumberRoutes(router: ConnectRouter, asAdmin: AsAdmin): void {
  router.service(DestinationNumberService, {
    addDestinationNumber: asAdmin(
      async ({ destinationNumbers }, { number, environment, projectId }, signal) => ({
        destinationNumber: numberMessage(
          await destinationNumbers.add(number, requiredEnvironmentOf(environment), projectId, signal),
        ),
      }),
    ),
    listDestinationNumbers: asAdmin(async ({ destinationNumbers }, request) => {
      const { projectId, pageSize, pageToken } = request;
      const found: Found = { violations: [] };
      const environment = environmentOf(request.environment, found);
      const { numbers, nextPageToken } = await destinationNumbers.list(
        projectId,
        environment,
        { pageSize, pageToken },
        found.violations,
      );
      return { destinationNumbers: numbers.map(numberMessage), nextPageToken };
    }),
    removeDestinationNumber: asAdmin(async ({ destinationNumbers }, { number }) => ({
      destinationNumber: numberMessage(await destinationNumbers.remove(number)),
    })),
  });
}

function numberMessage(number: DestinationNumber) {
  return create(DestinationNumberSchema, {
    number: number.number,
    environment: environmentMessage(number.environment),
    projectId: number.projectId === null ? "" : encodeId("prj_", number.projectId),
    createdAt: timestampFromDate(number.createdAt),
  });
}
