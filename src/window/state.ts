/** The state that an open window's script receives: in the page, over the stream, or by polling. */

import { type Timestamp, timestampMs } from "@bufbuild/protobuf/wkt";
import type { VerificationWindow } from "../gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import { PendingReason } from "../gen/proto/phoneproof/v1/verification_history_pb.ts";
import { Carrier, VerificationStatus } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import type { WindowState } from "./browser/state.ts";

const statuses: Readonly<Record<number, WindowState["status"]>> = {
  [VerificationStatus.PENDING]: "pending",
  [VerificationStatus.VERIFIED]: "verified",
  [VerificationStatus.EXPIRED]: "expired",
  [VerificationStatus.CANCELLED]: "cancelled",
};

const hints: Readonly<Record<number, WindowState["hint"]>> = {
  [PendingReason.ANOTHER_NUMBER]: "another_number",
  [PendingReason.WEB_SENT]: "web_sent",
  [PendingReason.TWO_CODES]: "two_codes",
  [PendingReason.WITHOUT_CODE]: "without_code",
  [PendingReason.MUTED]: "muted",
};

const carriers: Readonly<Record<number, string>> = {
  [Carrier.SKT]: "SKT",
  [Carrier.KT]: "KT",
  [Carrier.LGU_PLUS]: "LGU+",
};

export function windowState(window: VerificationWindow): WindowState {
  const status = statusOf(window);
  const over = status !== "pending";
  const { parentOrigin, returnUrl } = window;
  return {
    version: `${status}.${millisecondsOf(window.pendingReasonAt)}`,
    status,
    remainingMs: Math.max(0, millisecondsOf(window.expiresAt) - millisecondsOf(window.serverTime)),
    hint: hints[window.pendingReason] ?? null,
    phone: window.maskedPhone === "" ? null : window.maskedPhone,
    carrier: carriers[window.carrier] ?? null,
    notice: over && parentOrigin !== undefined ? { origin: parentOrigin, message: resultOf(window) } : null,
    returnUrl: over && returnUrl !== undefined ? withResult(returnUrl, window) : null,
  };
}

function statusOf({ status }: VerificationWindow): WindowState["status"] {
  const name = statuses[status];
  if (name === undefined) throw new Error(`the window has no word for the status ${status}`);
  return name;
}

/** The postMessage to the merchant's page. It has no phone: the merchant's server reads that itself. */
function resultOf(window: VerificationWindow) {
  return {
    type: "phone_verification.result",
    version: 1,
    verification_id: window.verificationId,
    status: statusOf(window),
    client_reference: window.clientReference,
    state: window.state,
  } as const;
}

/** The registered URL, unchanged, with the result appended to its query. */
function withResult(returnUrl: string, window: VerificationWindow): string {
  const [address = "", ...fragment] = returnUrl.split("#");
  const result = [
    ["verification_id", window.verificationId],
    ["status", statusOf(window)],
    ["state", window.state],
  ];
  const query = result.map(([name, value = ""]) => `${name}=${encodeURIComponent(value)}`).join("&");
  const separator = !address.includes("?") ? "?" : /[?&]$/.test(address) ? "" : "&";
  return [address + separator + query, ...fragment].join("#");
}

function millisecondsOf(timestamp: Timestamp | undefined): number {
  return timestamp === undefined ? 0 : timestampMs(timestamp);
}
