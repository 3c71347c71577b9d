import { randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, expect, onTestFinished, test } from "vitest";
import { type ChargingLane, createChargingLanes } from "../../src/storage/charging-lanes.ts";
import { openDatabase, runStatement, type Statements } from "../../src/storage/database.ts";
import { demandOf } from "../../src/storage/usage.ts";
import { createDatabase } from "../harness/database.ts";

const own = await createDatabase();
afterAll(() => own.drop());

function open(options: { readonly preparedStatements?: boolean } = {}) {
  const database = openDatabase(own.connection, { ...options, poolSize: 8, onError() {} });
  onTestFinished(() => database.close());
  return createChargingLanes(database);
}

const slow = { name: "slow", text: "SELECT pg_backend_pid(), pg_sleep(1.5)" };
const backend = { name: "backend", text: "SELECT pg_backend_pid(), pg_sleep(0.1)" };
const refused = { name: "refused", text: "SELECT pg_backend_pid(), 1 / 0" };

const backendOf = async (connection: Statements) => (await runStatement(connection, backend, []))[0]?.[0];
const charge = (lane: ChargingLane, ...projects: (string | null)[]) =>
  lane.charge(demandOf(projects), backendOf);

const [a, b, c] = [randomUUID(), randomUUID(), randomUUID()] as const;

test("what charges a project in common goes over one connection, of whatever kind it is", async () => {
  const openLane = open();
  const [creating, reading, cancelling] = [openLane(), openLane(), openLane()];
  const backends = await Promise.all([charge(creating, a, b), charge(reading, b, c), charge(cancelling, c)]);
  expect(new Set(backends).size).toBe(1);
});

test("what has no project in common does not wait for what is under way", async () => {
  const openLane = open();
  const [creating, reading, cancelling] = [openLane(), openLane(), openLane()];
  const backends = await Promise.all([charge(creating, a), charge(reading, b), charge(cancelling, c)]);
  expect(new Set(backends).size).toBe(3);
});

test("nor does who is not charged", async () => {
  const openLane = open();
  const [creating, reading] = [openLane(), openLane()];
  const [first, second] = await Promise.all([charge(creating, a, null), charge(reading, null, null)]);
  expect(second).not.toBe(first);
});

test("it follows whoever charged the same last, on whichever connection that is", async () => {
  const openLane = open();
  const [creating, reading, cancelling] = [openLane(), openLane(), openLane()];
  const [first, beside, behind] = await Promise.all([
    charge(creating, a),
    charge(reading, b),
    charge(cancelling, b),
  ]);
  expect(beside).not.toBe(first);
  expect(behind).toBe(beside);
});

test("nothing follows what takes longer than a second", async () => {
  const openLane = open();
  const [creating, reading] = [openLane(), openLane()];
  const first = creating.charge(demandOf([a]), (connection) => runStatement(connection, slow, []));
  await delay(1_100);
  const second = await charge(reading, a);
  const [[stuck] = []] = await first;
  expect(second).not.toBe(stuck);
});

test("what is over, refused or not, stands in nobody's way", async () => {
  const openLane = open();
  const [creating, reading] = [openLane(), openLane()];
  const first = await charge(creating, a);
  const failing = creating.charge(demandOf([a]), (connection) => runStatement(connection, refused, []));
  await expect(failing).rejects.toThrow("division by zero");
  expect(await charge(reading, b)).toBe(first);
});

test("behind a pooler of transactions each has a connection of its own", async () => {
  const openLane = open({ preparedStatements: false });
  const [creating, reading] = [openLane(), openLane()];
  expect(creating.isPipelined).toBe(false);
  const [first, second] = await Promise.all([charge(creating, a), charge(reading, a)]);
  expect(second).not.toBe(first);
});
