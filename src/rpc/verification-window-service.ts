import { create } from "@bufbuild/protobuf";
import type { VerificationWindowService } from "../core/service.ts";
import type {
  GetVerificationWindow,
  SendTestMessage,
  WatchVerificationWindow,
} from "../core/verification-window.ts";
import {
  GetVerificationWindowResponseSchema,
  SendTestMessageResponseSchema,
  WatchVerificationWindowResponseSchema,
} from "../gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import { outcomeMessage, windowMessage } from "./messages.ts";

/** The window's service over the core's use cases. It is not served over the network. */
export function createVerificationWindowService(core: {
  readonly getVerificationWindow: GetVerificationWindow;
  readonly watchVerificationWindow: WatchVerificationWindow;
  readonly sendTestMessage: SendTestMessage;
}): VerificationWindowService {
  return {
    async getVerificationWindow({ windowToken }) {
      const window = windowMessage(await core.getVerificationWindow(windowToken));
      return create(GetVerificationWindowResponseSchema, { window });
    },

    async *watchVerificationWindow({ windowToken }, signal) {
      for await (const window of core.watchVerificationWindow(windowToken, signal)) {
        yield create(WatchVerificationWindowResponseSchema, { window: windowMessage(window) });
      }
    },

    async sendTestMessage({ windowToken, from, text, carrier }, origin) {
      const message = { from, text, carrier };
      const { outcome, duplicate } = await core.sendTestMessage(windowToken, message, origin);
      return create(SendTestMessageResponseSchema, { outcome: outcomeMessage(outcome), duplicate });
    },
  };
}
