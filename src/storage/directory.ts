import { LRUCache } from "lru-cache";
import { atMost } from "../cache-size.ts";
import type { CodeLengths } from "../core/code.ts";
import { type CredentialKind, digestCredential } from "../core/credential.ts";
import type { DestinationNumber, Directory } from "../core/directory.ts";
import { adminSource } from "../core/inbound-message.ts";
import type { Caller, CodeFormat, Environment, Project, ServiceTokenScope } from "../core/project.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, type NamedStatement, runStatement } from "./database.ts";
import { directoryChannel } from "./notices.ts";
import { projectColumns, projectOf } from "./project-row.ts";

/** How long an answer is cached, in case the notice of a change is lost; counted from the look-up's start. */
const cacheTtlMs = 1_000;
const rememberedCredentials = 20_000;
/** Destinations of messages that are no numbers of this installation, or none any more. */
const rememberedIdleNumbers = 1_000;

export interface CachedDirectory extends Directory {
  /** Drops the whole cache, look-ups in flight included. */
  forget(): void;
}

/**
 * Batched: each process looks each active key up once a second; with thousands of them, and with invented ones, one statement
 * per key would be noticeable.
 */
const apiKeysStatement = {
  name: "caller_api_keys",
  text: `
SELECT r.digest, k.id::text, k.environment::text, ${projectColumns}
FROM unnest($1::text[]) AS r (digest)
CROSS JOIN LATERAL (
  SELECT * FROM api_key k
  WHERE k.digest = decode(r.digest, 'hex') AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
  OFFSET 0
) k
CROSS JOIN LATERAL (SELECT * FROM project p WHERE p.id = k.project_id OFFSET 0) p`,
};

const serviceTokensStatement = {
  name: "caller_service_tokens",
  text: `
SELECT r.digest, t.id::text, t.scope::text, t.source, t.project_id::text, t.environment::text, t.numbers
FROM unnest($1::text[]) AS r (digest)
CROSS JOIN LATERAL (
  SELECT * FROM service_token t WHERE t.digest = decode(r.digest, 'hex') AND t.revoked_at IS NULL OFFSET 0
) t`,
};

const projectStatement = {
  name: "project",
  text: `SELECT ${projectColumns} FROM project p WHERE p.id = $1::uuid`,
};

/**
 * The revision of the table, and its rows unless $1 is that revision. Loading all rows once a second, of 24,000 numbers, would
 * take 40 ms each time, a part of it in one piece. Each insertion, update and deletion changes the number of rows or the sum of
 * the transactions that wrote them. If a number was removed and added again, only its latest row counts.
 */
const numbersStatement = {
  name: "numbers",
  text: `
WITH current AS MATERIALIZED (
  SELECT count(*) || ' ' || coalesce(sum(xmin::text::int8), 0) AS revision FROM destination_number
)
SELECT revision, NULL, NULL, NULL, NULL FROM current
UNION ALL
(
  SELECT DISTINCT ON (number) number, environment::text, project_id::text, created_at, removed_at IS NOT NULL
  FROM destination_number WHERE (SELECT revision FROM current) <> $1
  ORDER BY number, removed_at DESC NULLS FIRST
)`,
};

/** Who has numbers in use, as in `Numbers.inUse`: of these projects, and of everybody if a number is shared. */
const ownersStatement = {
  name: "number_owners",
  text: `
SELECT DISTINCT coalesce(project_id::text, '') || environment::text
FROM destination_number WHERE removed_at IS NULL AND (project_id IS NULL OR project_id = ANY ($1::uuid[]))`,
};

/** Which of these numbers are in use. */
const numbersInUseStatement = {
  name: "numbers_in_use",
  text: `
SELECT d.number FROM unnest($1::text[]) AS r (number)
CROSS JOIN LATERAL (SELECT * FROM destination_number WHERE number = r.number AND removed_at IS NULL OFFSET 0) d`,
};

const codeLengthsStatement = {
  name: "code_lengths",
  text: `
SELECT code_format::text, code_length::int FROM project GROUP BY 1, 2
UNION
SELECT code_format::text, code_length::int FROM used_code_length`,
};

const addCodeLengthStatement = {
  name: "add_code_length",
  text: `
WITH added AS (
  INSERT INTO used_code_length (code_format, code_length) VALUES ($1::code_format, $2::int)
  ON CONFLICT DO NOTHING RETURNING 1
)
SELECT pg_notify('${directoryChannel}', 'code length') FROM added`,
};

interface Remembered<T> {
  value: T | Promise<T>;
  /** By performance.now(). */
  readonly until: number;
}

interface Numbers {
  /** Of the table, by `numbersStatement`. */
  readonly revision: string;
  readonly byNumber: ReadonlyMap<string, DestinationNumber>;
  /** By `projectId + environment`; shared ones by the environment alone. */
  readonly inUse: ReadonlyMap<string, readonly DestinationNumber[]>;
}

const noNumbers: readonly DestinationNumber[] = [];

export function createDirectory(database: Database): CachedDirectory {
  /** By the credential itself: computing its digest would take longer than all the rest of the look-up. */
  const callers = new LRUCache<string, Remembered<Caller | null>>(atMost(rememberedCredentials));
  const projects = new LRUCache<string, Remembered<Project | null>>(atMost(rememberedCredentials));
  /** Holds one list, under the key `all`, as does `codeLengthLists`. */
  const numberLists = new Map<string, Remembered<Numbers>>();
  const idleNumbers = new LRUCache<string, Remembered<DestinationNumber | undefined>>({
    max: rememberedIdleNumbers,
  });
  const codeLengthLists = new Map<string, Remembered<CodeLengths>>();
  /** By format and length. */
  const addedCodeLengths = new Map<string, Remembered<true>>();
  let revision = 0;
  const revisionListeners = new Set<() => void>();

  interface Memory<T> {
    get(key: string): Remembered<T> | undefined;
    set(key: string, remembered: Remembered<T>): unknown;
    delete(key: string): unknown;
  }

  /** Concurrent look-ups of the same key share one query. A failed one is not cached. */
  function cachedLookup<T>(memory: Memory<T>, key: string, lookUp: () => Promise<T>): T | Promise<T> {
    const known = memory.get(key);
    const now = performance.now();
    if (known && known.until > now) return known.value;
    const answer = lookUp();
    const remembered: Remembered<T> = { value: answer, until: now + cacheTtlMs };
    memory.set(key, remembered);
    answer.then(
      (value) => {
        remembered.value = value;
      },
      () => {
        if (memory.get(key) === remembered) memory.delete(key);
      },
    );
    return answer;
  }

  // One for both kinds of callers: with one each, every figure would be in the metrics twice, under the same labels.
  const lookUpObserver = database.observer.batch("authenticate");

  /** Looks callers up by the digests of their credentials. */
  function callersBy(statement: NamedStatement, callerOf: (row: readonly unknown[]) => Caller) {
    return createBatcher<string, Caller | null>({
      observer: lookUpObserver,
      maxSize: 256,
      maxWaiting: 10_000,
      async run(digests) {
        const rows = await runStatement(database, statement, [plainArray(digests)]);
        const byDigest = new Map(rows.map((row) => [row[0], callerOf(row)]));
        return digests.map((digest) => byDigest.get(digest) ?? null);
      },
    });
  }

  const findMerchant = callersBy(apiKeysStatement, merchantCallerOf);
  const findService = callersBy(serviceTokensStatement, serviceCallerOf);

  function findCaller(credential: string, kind: CredentialKind): Promise<Caller | null> {
    const find = kind === "svc" ? findService : findMerchant;
    return find(digestCredential(credential));
  }

  /** Kept when the cache is dropped, since it is used only as long as the table has not changed. */
  let loadedNumbers: Numbers = { revision: "", byNumber: new Map(), inUse: new Map() };

  async function loadNumbers(): Promise<Numbers> {
    const known = loadedNumbers;
    const [current, ...rows] = await runStatement(database, numbersStatement, [known.revision]);
    const revision = current?.[0] as string;
    if (revision === known.revision) return known;
    const byNumber = new Map<string, DestinationNumber>();
    const inUse = new Map<string, DestinationNumber[]>();
    for (const row of rows) {
      const number: DestinationNumber = {
        number: row[0] as string,
        environment: row[1] as Environment,
        projectId: row[2] as string | null,
        createdAt: row[3] as Date,
        removed: row[4] === true,
      };
      byNumber.set(number.number, number);
      if (number.removed) continue;
      const owner = `${number.projectId ?? ""}${number.environment}`;
      const owned = inUse.get(owner);
      if (owned) owned.push(number);
      else inUse.set(owner, [number]);
    }
    loadedNumbers = { revision, byNumber, inUse };
    return loadedNumbers;
  }

  async function loadCodeLengths(): Promise<CodeLengths> {
    const lengths: Record<CodeFormat, number[]> = { numeric: [], alphanumeric: [] };
    for (const row of await runStatement(database, codeLengthsStatement, [])) {
      lengths[row[0] as CodeFormat].push(row[1] as number);
    }
    return lengths;
  }

  const numbers = () => cachedLookup(numberLists, "all", loadNumbers);

  /** One for all look-ups of numbers, like that of the callers. */
  const numbersObserver = database.observer.batch("numbers");

  /**
   * Whether there is a number in use for a project and environment, by a look-up that begins after the call. Loading all numbers
   * instead, for each call of a project that has none, would take them from all other projects meanwhile: with 26,000 numbers,
   * 25 such calls a second made the creations of the others take 80 ms instead of 2.
   */
  const hasNumberNow = createBatcher<{ projectId: string; environment: Environment }, boolean>({
    observer: numbersObserver,
    maxSize: 256,
    maxWaiting: 10_000,
    async run(asked) {
      const projectIds = new Set(asked.map(({ projectId }) => projectId));
      const rows = await runStatement(database, ownersStatement, [plainArray([...projectIds])]);
      const owners = new Set(rows.map(([owner]) => owner));
      return asked.map(
        ({ projectId, environment }) => owners.has(`${projectId}${environment}`) || owners.has(environment),
      );
    },
  });

  /** Loads the numbers with a look-up that begins after the call. One at a time, however many ask. */
  const loadNumbersNow = createBatcher<null, Numbers>({
    observer: numbersObserver,
    maxSize: 10_000,
    maxWaiting: 10_000,
    async run(askers) {
      numberLists.clear();
      const loaded = await numbers();
      return askers.map(() => loaded);
    },
  });

  const isInUseNow = createBatcher<string, boolean>({
    observer: numbersObserver,
    maxSize: 500,
    maxWaiting: 100_000,
    async run(asked) {
      const rows = await runStatement(database, numbersInUseStatement, [textArray([...new Set(asked)])]);
      const inUse = new Set(rows.map(([number]) => number));
      return asked.map((number) => inUse.has(number));
    },
  });

  /**
   * Looks a number that is cached as unknown or removed up again, at most once a second: as for `numbersForNow`, it may just have
   * been added. A message to it would otherwise match nothing; if it served the other environment before, also count as a miss
   * of its sender there.
   */
  const addedNumber = (number: string) =>
    cachedLookup(idleNumbers, number, async () => {
      const current = (await isInUseNow(number)) ? await loadNumbersNow(null) : await numbers();
      return current.byNumber.get(number);
    });

  function currentNumber({ byNumber }: Numbers, number: string) {
    const cached = byNumber.get(number);
    return cached?.removed === false ? cached : addedNumber(number);
  }

  const codeLengths = () => cachedLookup(codeLengthLists, "all", loadCodeLengths);

  const inUseFor = (known: Numbers, projectId: string, environment: Environment) =>
    known.inUse.get(`${projectId}${environment}`) ?? known.inUse.get(environment) ?? noNumbers;

  /**
   * Looks up a project without cached numbers again: another process may have just given it one, whose notice has not arrived
   * here.
   */
  async function numbersForNow(projectId: string, environment: Environment) {
    const remembered = inUseFor(await numbers(), projectId, environment);
    if (remembered.length > 0) return remembered;
    if (!(await hasNumberNow({ projectId, environment }))) return noNumbers;
    return inUseFor(await loadNumbersNow(null), projectId, environment);
  }

  return {
    caller: (credential, kind) => cachedLookup(callers, credential, () => findCaller(credential, kind)),

    remembered(credential) {
      const known = callers.get(credential);
      if (!known || known.until <= performance.now() || known.value instanceof Promise) return undefined;
      return known.value ?? undefined;
    },

    async project(id) {
      return cachedLookup(projects, id, async () => {
        const [row] = await runStatement(database, projectStatement, [id]);
        return row ? projectOf(row, 0) : null;
      });
    },

    numbersFor(projectId, environment) {
      const known = numbers();
      const found = known instanceof Promise ? noNumbers : inUseFor(known, projectId, environment);
      return found.length > 0 ? found : numbersForNow(projectId, environment);
    },

    numbersNow: async (projectId, environment) =>
      inUseFor(await loadNumbersNow(null), projectId, environment),

    number(number) {
      const known = numbers();
      if (known instanceof Promise) return known.then((loaded) => currentNumber(loaded, number));
      return currentNumber(known, number);
    },

    codeLengths,

    async addCodeLength(format, length) {
      const known = codeLengths();
      if ((known instanceof Promise ? await known : known)[format].includes(length)) return;
      await cachedLookup(addedCodeLengths, `${format} ${length}`, async () => {
        await runStatement(database, addCodeLengthStatement, [format, length]);
        codeLengthLists.clear();
        return true;
      });
    },

    revision: () => revision,

    onRevision(listener) {
      revisionListeners.add(listener);
      return { stop: () => void revisionListeners.delete(listener) };
    },

    forget() {
      revision++;
      callers.clear();
      projects.clear();
      numberLists.clear();
      idleNumbers.clear();
      codeLengthLists.clear();
      addedCodeLengths.clear();
      for (const listener of revisionListeners) listener();
    },
  };
}

function merchantCallerOf(row: readonly unknown[]): Caller {
  return {
    kind: "merchant",
    apiKeyId: row[1] as string,
    environment: row[2] as Environment,
    project: projectOf(row, 3),
  };
}

function serviceCallerOf(row: readonly unknown[]): Caller {
  return {
    kind: "service",
    tokenId: row[1] as string,
    scope: row[2] as ServiceTokenScope,
    source: row[2] === "admin" ? adminSource : (row[3] as string | null),
    projectId: row[4] as string | null,
    environment: row[5] as Environment | null,
    numbers: row[6] as string[],
  };
}
