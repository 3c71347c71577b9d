/** What an error of the database, its driver or Prisma means. */

import pg from "pg";
import { Failure } from "../failures.ts";
import { ConnectionVanished } from "./connection-watch.ts";

/** SQLSTATE classes that concern only the statement: its data (22), constraints (23), concurrent transactions (40). */
const refusedStates = /^(22|23|40)/;

/** Whether an error concerns its statement alone, so that the connection stays usable. */
export const isOnlyRefused = (error: unknown) =>
  error instanceof pg.DatabaseError && refusedStates.test(error.code ?? "");

/**
 * SQLSTATE classes and codes that blame the state of the server, not the statement's data. 25P03 and 25P04 end a transaction
 * that exceeds a timeout of the role or the database.
 */
const unavailableStates = /^(08|28|40|53|57|58|25006|25P03|25P04|3D000|55000|55P03)/;

/** Prisma error codes: the database is unreachable, or had no free connection, also for a transaction. */
const unavailablePrismaCodes = /^(P1\d{3}|P2024|P2028|P2037)$/;

/**
 * Whether an error says that the database cannot answer at the moment, rather than that it refuses
 * this statement. The driver's own errors (connection lost, timed out) carry no SQLSTATE.
 */
export function isDatabaseUnavailable(error: unknown): boolean {
  if (error instanceof pg.DatabaseError)
    return error.code === undefined || unavailableStates.test(error.code);
  if (error instanceof Failure) return error.code === "service_unavailable";
  const { kind, originalCode } = adapterCause(error);
  if (typeof originalCode === "string") return unavailableStates.test(originalCode);
  return unreachableKinds.has(kind) || isDriverError(error);
}

/**
 * SQLSTATE classes of a server that cannot answer at all: the connection (08), one that is starting or stopping (57), its
 * system (58); and of a statement that only its time was wrong for (40, 55).
 */
const passingStates = /^(08|40|55|57|58)/;

/** Whether the server, up and running, refused the login or the statement: an administrator has to change something. */
export function isAnsweredWithError(error: unknown): boolean {
  const state = refusedState(error);
  return state !== undefined && !passingStates.test(state);
}

/** The adapter's error kinds for which the server has not answered. */
const unreachableKinds: ReadonlySet<unknown> = new Set([
  "DatabaseNotReachable",
  "ConnectionClosed",
  "SocketTimeout",
  "TlsConnectionError",
]);

interface AdapterError {
  readonly cause?: { readonly kind?: unknown; readonly originalCode?: unknown };
}

/**
 * The driver's error as Prisma's adapter wraps it; `originalCode` is the SQLSTATE if the server has answered with one. Prisma
 * wraps the adapter's error once more, but not if a transaction could not be begun or committed.
 */
function adapterCause(error: unknown): NonNullable<AdapterError["cause"]> {
  const thrown = (error ?? {}) as AdapterError & { meta?: { driverAdapterError?: AdapterError } };
  return (thrown.meta?.driverAdapterError ?? thrown).cause ?? {};
}

/** Node's error codes: ECONNREFUSED, EPIPE, EAI_AGAIN, ERR_STREAM_DESTROYED, … */
const systemErrors = /^(E[A-Z_]+|ERR_STREAM_\w+)$/;
const driverMessages =
  /timeout|Connection terminated|Client has encountered a connection error|Cannot use a pool after|not queryable/i;

function isDriverError(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = "code" in error && typeof error.code === "string" ? error.code : "";
  return systemErrors.test(code) || unavailablePrismaCodes.test(code) || driverMessages.test(error.message);
}

/**
 * Whether the database will never accept this data: a value it cannot read (class 22), or one that violates a constraint (class
 * 23).
 */
export function isDataRefused(error: unknown): boolean {
  return error instanceof pg.DatabaseError && /^2[23]/.test(error.code ?? "");
}

/** The database's or the driver's error, which a caller's `Failure` wraps. */
const unwrapped = (error: unknown) => (error instanceof Failure ? error.cause : error);

/** The SQLSTATE of a database error, or of the one that a caller's `Failure` wraps. */
export function refusedState(error: unknown): string | undefined {
  const refusal = unwrapped(error);
  return refusal instanceof pg.DatabaseError ? refusal.code : undefined;
}

/** Whether the database could not be reached, or has not answered at all: neither with an error nor on another connection. */
export function isUnanswered(error: unknown): boolean {
  return (
    isDatabaseUnavailable(error) &&
    refusedState(error) === undefined &&
    !(unwrapped(error) instanceof ConnectionVanished)
  );
}

/** Whether the statement was the victim of a deadlock. */
export function isDeadlock(error: unknown): boolean {
  return refusedState(error) === "40P01";
}

/**
 * The error that a caller gets for a failed statement: service_unavailable if the database is unavailable, else the error
 * itself.
 */
export function asStorageError(error: unknown): unknown {
  if (error instanceof Failure) return error;
  return isDatabaseUnavailable(error) ? new Failure("service_unavailable", { cause: error }) : error;
}
