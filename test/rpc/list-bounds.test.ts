/** What a list may cost: rows read per page, and connections held by concurrent lists or statistics. */
import { type CallOptions, type Client, Code } from "@connectrpc/connect";
import { expect, onTestFinished, test, vi } from "vitest";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { AuditService } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenService } from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { StatisticsService } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import {
  Environment,
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { runningTime } from "../../src/running-time.ts";
import { answerOf as printed, towards } from "../cli/command.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService, type TestProject } from "../harness/service.ts";
import { shortenTimers, suppressTimers } from "../harness/timers.ts";
import { createPending } from "../service/pending.ts";
import { answerOf } from "./grpc-answer.ts";

const service = await startTestService({ ROLES: "api" });
const { db } = service;

/** The rows that one page may read per environment. */
const walked = 2_000;
const ours = "FROM pg_stat_activity WHERE application_name = 'phoneproof' AND datname = current_database()";

/** Inserts copies of an existing verification as verified, one per millisecond, the newest `ago`, in the order of creation. */
async function fill(project: TestProject, count: number, ago: string): Promise<void> {
  for (const key of [project.liveKey, project.testKey]) await createPending(merchant(service.httpUrl, key));
  await db.query(
    `INSERT INTO verification (id, project_id, environment, mode, status, phone, client_reference, state, destination,
       sms_text, created_at, expires_at, verified_at)
     SELECT uuidv7(-$2::interval - n * interval '1 millisecond'), project_id, environment, mode, 'verified',
       '010' || lpad(n::text, 8, '0'), CASE WHEN n % 1500 < 2 THEN 'rare' ELSE '' END, '', destination, '', created_at - $2::interval,
       created_at - $2::interval + interval '10 minutes', created_at - $2::interval
     FROM verification, generate_series(1, $3::int) n
     -- Fewer in test, so that the two environments differ.
     WHERE project_id = (SELECT id FROM project WHERE name = $1) AND n <= CASE environment WHEN 'live' THEN $3::int ELSE $3::int / 2 END
     ORDER BY n DESC`,
    [project.projectId, ago, count],
  );
}

/** A project that can be found in its table by its name. */
async function newProject(): Promise<TestProject> {
  const project = await service.createProject();
  await db.query("UPDATE project SET name = $1 WHERE name = 'Shop'", [project.projectId]);
  return project;
}

interface Walk {
  readonly references: string[];
  readonly ids: string[];
  readonly sizes: number[];
}

async function walk(
  rpc: Client<typeof VerificationService>,
  filter: Parameters<typeof rpc.listVerifications>[0],
): Promise<Walk> {
  const found: Walk = { references: [], ids: [], sizes: [] };
  let pageToken = "";
  do {
    const page = await rpc.listVerifications({ ...filter, pageToken });
    found.ids.push(...page.verifications.map(({ id }) => id));
    found.references.push(...page.verifications.map(({ clientReference }) => clientReference));
    found.sizes.push(page.verifications.length);
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  return found;
}

/** The rows of `verification` that `work` reads. Connections report their counts at the latest when they end. */
async function rowsRead(work: () => Promise<void>): Promise<number> {
  await db.query("SELECT pg_stat_reset()");
  await work();
  const { rows: ended } = await db.query(`SELECT pid, pg_terminate_backend(pid) ${ours}`);
  const pids = ended.map(({ pid }) => pid);
  await vi.waitUntil(
    async () => (await db.query(`SELECT ${ours} AND pid = ANY ($1)`, [pids])).rowCount === 0,
    { timeout: 45_000, interval: 20 },
  );
  const { rows } = await db.query(
    `SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'verification')
       + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'verification') AS read`,
  );
  return Number(rows[0]?.read);
}

const big = await newProject();
const small = await newProject();
const clientOf = (project: TestProject, of = service) => of.client(VerificationService, project.liveKey);
/** Has few connections, and planned the list's statements on them while the table was empty. */
const older = await service.startAnother({ DATABASE_POOL_SIZE: "4" });
for (let times = 0; times < 8; times++) await clientOf(big, older).listVerifications({});
await fill(big, 7_000, "2 hours");
await fill(small, 10, "3 hours");
/** Rows that other statements may read. */
const besides = 50;

test("a page reads at most 2000 rows per environment, with plans made while the table was empty", async () => {
  const read = await rowsRead(async () => {
    expect((await walk(clientOf(big, older), { phone: "01000007000" })).sizes).toEqual([0, 0, 0, 1]);
  });
  expect(read).toBeGreaterThanOrEqual(7_000);
  expect(read).toBeLessThanOrEqual(4 * walked + besides);
});

test("a page reads at most 2000 rows per environment, with plans for a table of mostly one project's rows", async () => {
  // As if the project had so many rows that ANALYZE's sample contains no others.
  await db.query("ALTER TABLE verification ALTER project_id SET (n_distinct = 1)");
  await db.query("VACUUM ANALYZE verification");
  const oldest = await rowsRead(async () => {
    expect((await walk(clientOf(big), { phone: "01000007000" })).sizes).toEqual([0, 0, 0, 1]);
  });
  expect(oldest).toBeGreaterThanOrEqual(7_000);
  expect(oldest).toBeLessThanOrEqual(4 * walked + besides);

  const nothing = await rowsRead(async () => {
    const { verifications } = await clientOf(big).listVerifications({
      statuses: [VerificationStatus.CANCELLED],
    });
    expect(verifications).toEqual([]);
  });
  expect(nothing).toBeLessThanOrEqual(walked + besides);

  const newest = await rowsRead(async () => {
    expect((await clientOf(big).listVerifications({ pageSize: 100 })).verifications).toHaveLength(100);
  });
  expect(newest).toBeLessThan(100 + besides);

  const ofSmall = await rowsRead(async () => {
    expect((await walk(clientOf(small), { phone: "01000007000" })).sizes).toEqual([0]);
  });
  expect(ofSmall).toBeLessThan(besides);
});

test("a list over both environments returns each match once, in order, and its pages end", async () => {
  const rpc = service.client(VerificationService);
  const { projectId } = big;
  for (const pageSize of [1, 2, 100]) {
    const { ids, references, sizes } = await walk(rpc, { projectId, clientReference: "rare", pageSize });
    expect(references).toEqual(references.map(() => "rare"));
    // n % 1500 < 2: nine of live's 7000 and five of test's 3500.
    expect(ids).toHaveLength(14);
    expect(ids).toEqual([...new Set(ids)].sort().reverse());
    expect(Math.max(...sizes)).toBeLessThanOrEqual(pageSize);
  }
  const { ids } = await walk(rpc, { projectId, pageSize: 1000 });
  expect(new Set(ids).size).toBe(7_000 + 3_500 + 2);
  expect(ids).toHaveLength(7_000 + 3_500 + 2);
});

test("the command reads on over empty pages until it has as many as --limit says, or reaches the end", async () => {
  const list = (...options: string[]) =>
    printed(
      ["verification", "list", "--project", big.projectId, "--environment", "live", ...options],
      towards(service),
    );
  const { verifications, next_page_token: none } = await list("--phone", "01000007000");
  expect(verifications).toMatchObject([{ phone: "01000007000" }]);
  expect(none).toBeNull();

  const first = await list("--client-reference", "rare", "--limit", "5");
  expect(first.verifications).toHaveLength(5);
  const rest = await list("--client-reference", "rare", "--page-token", first.next_page_token);
  expect(rest.verifications).toHaveLength(4);
  expect(rest.next_page_token).toBeNull();
  expect((await list("--phone", "01099999999")).verifications).toEqual([]);
});

/** How many calls have had to queue since the timers were changed. */
const queued = () =>
  new Set(
    vi
      .mocked(setTimeout)
      .mock.calls.filter(([, delay]) => delay === 3_000)
      .map(([act]) => act),
  ).size;

const statisticsOf = (project: TestProject) => service.client(StatisticsService, project.liveKey);
const others = await Promise.all(Array.from({ length: 5 }, newProject));

test.for<{
  name: string;
  table: string;
  ask: (project: TestProject, options?: CallOptions) => Promise<unknown>;
}>([
  {
    name: "lists",
    table: "verification",
    ask: (project, options) =>
      clientOf(project).listVerifications({ environment: Environment.LIVE }, options),
  },
  {
    name: "statistics",
    table: "number_statistics",
    ask: (project, options) => statisticsOf(project).getStatistics({}, options),
  },
])("concurrent $name hold at most a quarter of the pool, one for each project; the rest get service_unavailable, uncounted", async ({
  table,
  ask,
}) => {
  const usage = async () =>
    Number((await db.query("SELECT sum(calls) AS calls FROM usage")).rows[0]?.calls ?? 0);
  const held = async () =>
    Number(
      (await db.query(`SELECT count(*) AS held ${ours} AND wait_event_type = 'Lock'`)).rows[0]?.held ?? 0,
    );
  const before = await usage();
  // The time that a call may queue is over as soon as all do that have to: Postgres cancels the statements that wait for the table after
  // eight seconds.
  const { now } = runningTime;
  const since = now();
  let isOver = false;
  const clock = vi.spyOn(runningTime, "now").mockImplementation(() => (isOver ? now() + 3_000 : since));
  onTestFinished(() => clock.mockRestore());
  shortenTimers(3_000);
  const locker = await db.connect();
  try {
    await locker.query("BEGIN");
    await locker.query(`LOCK TABLE ${table} IN ACCESS EXCLUSIVE MODE`);
    const begunAt = performance.now();
    const outcomes: string[] = [];
    const asked: ReturnType<typeof answerOf>[] = [];
    let refused = 0;
    let most = 0;
    const begin = (project: TestProject) => {
      const call = answerOf((options) => ask(project, options));
      call.then(({ code }) => {
        refused += code === "service_unavailable" ? 1 : 0;
        outcomes.push(`${code} after ${Math.round(performance.now() - begunAt)} ms`);
      });
      asked.push(call);
    };
    const untilHeld = (count: number) =>
      vi.waitUntil(async () => (await held()) === count, { timeout: 45_000, interval: 20 });
    for (let times = 0; times < 20; times++) begin(small);
    await untilHeld(1);
    // Another project's call does not wait for those of the first one.
    begin(others[0] as TestProject);
    await untilHeld(2);
    for (const project of others.slice(1)) begin(project);
    await untilHeld(4);
    await vi.waitUntil(() => queued() >= 21, { timeout: 45_000 });
    isOver = true;
    await vi.waitUntil(
      async () => {
        most = Math.max(most, await held());
        return refused === 21;
      },
      { timeout: 45_000, interval: 20 },
    );
    expect(most).toBe(4);
    await locker.query("COMMIT");
    const answers = await Promise.all(asked);
    expect(answers.filter(({ code }) => code === "ok")).toHaveLength(4);
    expect(answers.filter(({ status }) => status === Code.Unavailable)).toHaveLength(21);
    expect((await usage()) - before, outcomes.join(", ")).toBe(4);
    // Finished calls free their places.
    await Promise.all([small, ...others].flatMap((project) => [1, 2, 3, 4].map(() => ask(project))));
    expect((await usage()) - before).toBe(4 + 24);
  } finally {
    await locker.query("ROLLBACK");
    locker.release();
  }
});

const { projectId } = big;
const admin = {
  projects: service.client(ProjectService),
  apiKeys: service.client(ApiKeyService),
  tokens: service.client(ServiceTokenService),
  numbers: service.client(DestinationNumberService),
  audit: service.client(AuditService),
  webhooks: service.client(WebhookService),
};

test.for<{ name: string; table: string; statement: string; ask: () => Promise<unknown> }>([
  { name: "projects", table: "project", statement: '"project"', ask: () => admin.projects.listProjects({}) },
  {
    name: "the settings of a project",
    table: "project",
    statement: '"project"',
    ask: () => admin.projects.getProject({ projectId }),
  },
  {
    name: "a month's usage",
    table: "usage",
    statement: "FROM usage u",
    ask: () => admin.projects.listUsage({}),
  },
  {
    name: "a project's usage",
    table: "usage",
    statement: "FROM usage u",
    ask: () => admin.projects.listUsage({ projectId }),
  },
  {
    name: "API keys",
    table: "api_key",
    statement: '"api_key"',
    ask: () => admin.apiKeys.listApiKeys({ projectId }),
  },
  {
    name: "service tokens",
    table: "service_token",
    statement: '"service_token"',
    ask: () => admin.tokens.listServiceTokens({}),
  },
  {
    name: "destination numbers",
    table: "destination_number",
    statement: '"destination_number"',
    ask: () => admin.numbers.listDestinationNumbers({}),
  },
  {
    name: "the audit log",
    table: "audit_entry",
    statement: '"audit_entry"',
    ask: () => admin.audit.listAuditEntries({}),
  },
  {
    name: "a webhook",
    table: "webhook_configuration",
    statement: "webhook_configuration",
    ask: () => admin.webhooks.getWebhook({ projectId, environment: Environment.LIVE }),
  },
  {
    name: "webhook deliveries",
    table: "webhook_delivery",
    statement: "webhook_delivery d",
    ask: () => admin.webhooks.listWebhookDeliveries({}),
  },
])("concurrent calls that read $name hold at most a quarter of the pool", async ({
  table,
  statement,
  ask,
}) => {
  // Those that queue are not refused, however long this takes.
  suppressTimers(3_000);
  const held = async () =>
    (await db.query(`SELECT ${ours} AND wait_event_type = 'Lock' AND strpos(query, $1) > 0`, [statement]))
      .rowCount ?? 0;
  const locker = await db.connect();
  const asked: Promise<unknown>[] = [];
  try {
    await locker.query("BEGIN");
    await locker.query(`LOCK TABLE ${table} IN ACCESS EXCLUSIVE MODE`);
    for (let times = 0; times < 20; times++) asked.push(ask().catch(() => {}));
    await vi.waitUntil(async () => queued() >= 16 && (await held()) > 0, { timeout: 45_000 });
    // Some read something else before. Prisma joins what is read at once of one row each.
    let most = 0;
    for (let looks = 0; looks < 10; looks++) most = Math.max(most, await held());
    expect(most).toBeLessThanOrEqual(4);
  } finally {
    await locker.query("ROLLBACK");
    locker.release();
  }
  await Promise.all(asked);
});
