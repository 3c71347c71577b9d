/** Checks the files in deploy/ against the service. Nothing here builds an image or needs a cluster. */
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { copyFile, glob, mkdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { BlockList } from "node:net";
import path from "node:path";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { parseAllDocuments } from "yaml";
import { startFlags } from "../../bench/start-flags.ts";
import { findProgram } from "../../deploy/cluster/programs.ts";
import { parseConfig } from "../../src/config.ts";
import { closeTimeoutMs } from "../../src/main.ts";
import { redactingLogSettings } from "../../src/storage/server-log.ts";

const root = path.join(import.meta.dirname, "../..");
const run = promisify(execFile);

const settings = new Set(
  [...readFileSync(path.join(root, "src/config.ts"), "utf8").matchAll(/^ {2}([A-Z][A-Z_]*): /gm)].map(
    ([, name = ""]) => name,
  ),
);

interface Container {
  readonly env?: readonly { readonly name: string }[];
  readonly envFrom?: readonly object[];
}

interface Manifest {
  readonly apiVersion: string;
  readonly kind: string;
  readonly data?: Readonly<Record<string, string>>;
  readonly spec?: {
    readonly template?: {
      readonly spec: {
        readonly terminationGracePeriodSeconds?: number;
        readonly containers: readonly Container[];
      };
    };
  };
}

async function documentsIn(file: string): Promise<unknown[]> {
  const documents = parseAllDocuments(await readFile(path.join(root, file), "utf8"), { merge: true });
  return [...documents].map((document) => {
    expect([file, document.errors, document.warnings]).toEqual([file, [], []]);
    return document.toJS();
  });
}

async function filesBelow(pattern: string): Promise<string[]> {
  const files = await Array.fromAsync(glob(pattern, { cwd: root }));
  expect(files).not.toEqual([]);
  return files.sort();
}

async function manifests(): Promise<Manifest[]> {
  const files = (await filesBelow("deploy/kubernetes/*.yaml")).filter((file) => !/kustomization/.test(file));
  return (await Promise.all(files.map(documentsIn))).flat() as Manifest[];
}

/** Names that look like settings, also in comments, which operators copy; except those of other programs. */
const foreign = /^(NODE_ENV|NODE_IMAGE|POSTGRES_\w+|AF_\w+)$/;
const namesIn = (text: string) =>
  [...text.matchAll(/\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b/g)]
    .map(([name]) => name)
    .filter((n) => !foreign.test(n));

/** The first cells of the tables' rows. */
const namesInRows = (text: string) =>
  [...text.matchAll(/^\| (`[^|]*) \|/gm)].flatMap(([, cell = ""]) =>
    [...cell.matchAll(/`(\w+)`/g)].map(([, name = ""]) => name),
  );

describe("every setting", () => {
  test.for([
    { files: "deploy/Containerfile", atLeast: 1 },
    { files: "deploy/compose.yaml", atLeast: 6 },
    { files: "deploy/kubernetes/*.yaml", atLeast: 6 },
    { files: "deploy/systemd/*", atLeast: 2 },
  ])("named in $files is read by the service", async ({ files, atLeast }) => {
    const texts = await Promise.all(
      (await filesBelow(files)).map((file) => readFile(path.join(root, file), "utf8")),
    );
    const names = new Set(texts.flatMap(namesIn));
    expect(names.size).toBeGreaterThanOrEqual(atLeast);
    expect([...names].filter((name) => !settings.has(name))).toEqual([]);
  });

  test("of a container of the service is read by it", async () => {
    const compose = (await documentsIn("deploy/compose.yaml"))[0] as {
      readonly services: Readonly<Record<string, { readonly environment: object }>>;
    };
    const named = [
      ...Object.keys(compose.services.api?.environment ?? {}),
      ...Object.keys(compose.services.worker?.environment ?? {}),
      ...(await manifests()).flatMap(({ kind, data, spec }) => [
        ...(kind === "ConfigMap" ? Object.keys(data ?? {}) : []),
        ...(spec?.template?.spec.containers ?? []).flatMap(({ env = [] }) => env.map(({ name }) => name)),
      ]),
    ];
    expect(named).toEqual(expect.arrayContaining(["ROLES", "DATABASE_URL", "PUBLIC_BASE_URL", "REDIS_URL"]));
    expect(named.filter((name) => !settings.has(name))).toEqual([]);
  });

  test("that the service reads is documented in docs/settings.md", async () => {
    const [ofService = "", ofCommand = ""] = (
      await readFile(path.join(root, "docs/settings.md"), "utf8")
    ).split("\n## The command\n");
    const described = namesInRows(ofService);
    expect(settings.size).toBeGreaterThan(20);
    // The driver reads these itself.
    const driver = ["PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE"];
    expect(described.sort()).toEqual([...settings, ...driver].sort());

    const help = await readFile(path.join(root, "src/cli/program.ts"), "utf8");
    const [, environment = ""] = /\nEnvironment:\n([\s\S]*?)\n\n/.exec(help) ?? [];
    const helpNames = environment
      .split("\n")
      .flatMap((line) => /^ {2}(\S.*?)(?: {2}|$)/.exec(line)?.[1] ?? []);
    expect(helpNames.length).toBeGreaterThan(4);
    expect(namesInRows(ofCommand).sort()).toEqual(helpNames.flatMap((names) => names.split(", ")).sort());
  });
});

describe("the image", () => {
  test("copies only files that exist and that .dockerignore lets through", async () => {
    const text = await readFile(path.join(root, "deploy/Containerfile"), "utf8");
    const sources = [...text.matchAll(/^COPY (?!--from)(.+) \S+$/gm)].flatMap(([, paths = ""]) =>
      paths.split(" "),
    );
    expect(sources.length).toBeGreaterThan(8);
    for (const source of sources) await expect(stat(path.join(root, source))).resolves.toBeDefined();
    const kept = (await readFile(path.join(root, ".dockerignore"), "utf8")).split("\n");
    for (const source of sources) expect(kept).toContain(`!${source.split("/")[0]}`);
  });

  test("has all packages that the service and the command import, although it has no devDependencies", async () => {
    const { dependencies } = JSON.parse(await readFile(path.join(root, "package.json"), "utf8")) as {
      readonly dependencies: Readonly<Record<string, string>>;
    };
    const seen = new Set<string>();
    const packages = new Set<string>();
    const waiting = ["src/main.ts", "src/cli/main.ts", "bin/phoneproof.mjs"].map((file) =>
      path.join(root, file),
    );
    for (const file of waiting) {
      if (seen.has(file)) continue;
      seen.add(file);
      const text = await readFile(file, "utf8");
      for (const [, typesOnly, target = ""] of text.matchAll(
        /^(?:import|export) (type )?(?:[^;"]*? from )?"([^"]+)"|\bimport\("([^"]+)"\)/gm,
      )) {
        if (typesOnly !== undefined || target === "" || target.startsWith("node:")) continue;
        if (target.startsWith(".")) waiting.push(path.join(path.dirname(file), target));
        else
          packages.add(
            target
              .split("/")
              .slice(0, target.startsWith("@") ? 2 : 1)
              .join("/"),
          );
      }
    }
    expect(seen.size).toBeGreaterThan(150);
    expect(packages.size).toBeGreaterThan(15);
    expect([...packages].filter((name) => !(name in dependencies))).toEqual([]);
  });
});

test("an installation without devDependencies fails with a line that says what to do", async () => {
  const folder = path.join(root, ".cache", `without-tools-${process.pid}`);
  await mkdir(folder, { recursive: true });
  try {
    await copyFile(path.join(root, "package.json"), path.join(folder, "package.json"));
    const installation = promisify(execFile)("npm", ["run", "--silent", "prepare"], { cwd: folder });
    await expect(installation).rejects.toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^npm omitted the development tools.*: run npm ci --include=dev\n/),
    });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

/** Checks the manifests with TypeScript, because Kubernetes's JSON schemas accept unknown properties, such as typos. */
async function typeErrors(checked: readonly Manifest[]): Promise<string> {
  const folder = path.join(root, ".cache", `kubernetes-${process.pid}`);
  const file = path.join(folder, "manifests.ts");
  const lines = checked.flatMap((manifest, index) => [
    `import type { ${manifest.kind} as Type${index} } from "kubernetes-types/${moduleOf(manifest)}.js";`,
    `export const manifest${index}: Type${index} = ${JSON.stringify(manifest)};`,
  ]);
  await mkdir(folder, { recursive: true });
  await writeFile(file, lines.join("\n"));
  const options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2024"];
  const tsc = path.join(root, "node_modules/.bin/tsc");
  const failed = await run(tsc, ["--ignoreConfig", ...options, file]).then(
    () => "",
    ({ stdout }: { stdout: string }) => stdout,
  );
  await rm(folder, { recursive: true, force: true });
  return failed;
}

/** The types' modules are named by the first label of the group, which is empty for the core. */
function moduleOf({ apiVersion }: Manifest): string {
  const [version = "", group = "core"] = apiVersion.split("/").reverse();
  return `${group.split(".")[0]}/${version}`;
}

describe("the Kubernetes manifests", () => {
  test("match the Kubernetes API's types, and a misspelled property would be detected", async () => {
    const checked = await manifests();
    expect(checked.map(({ kind }) => kind)).toEqual(
      expect.arrayContaining([
        "Deployment",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
      ]),
    );
    expect(await typeErrors(checked)).toBe("");
    const slip = JSON.parse(
      JSON.stringify(checked).replaceAll("readinessProbe", "readynessProbe"),
    ) as Manifest[];
    expect(await typeErrors(slip)).toContain("readynessProbe");
  });

  test("run every workload as non-root with a read-only root file system, no capabilities and both probes", async () => {
    const workloads = (await manifests()).filter(({ kind }) => kind === "Deployment");
    expect(workloads).toHaveLength(2);
    for (const { spec } of workloads) {
      expect(spec?.template?.spec).toMatchObject({
        automountServiceAccountToken: false,
        securityContext: { runAsNonRoot: true, seccompProfile: { type: "RuntimeDefault" } },
        containers: [
          {
            securityContext: {
              readOnlyRootFilesystem: true,
              allowPrivilegeEscalation: false,
              capabilities: { drop: ["ALL"] },
            },
            livenessProbe: { httpGet: { path: "/healthz" } },
            readinessProbe: { httpGet: { path: "/readyz" } },
          },
        ],
      });
    }
  });

  test("are all listed in the kustomization", async () => {
    const [kustomization] = (await documentsIn("deploy/kubernetes/kustomization.yaml")) as {
      readonly resources: readonly string[];
    }[];
    const files = (await filesBelow("deploy/kubernetes/*.yaml")).map((file) => path.basename(file));
    expect([...(kustomization?.resources ?? []), "kustomization.yaml"].sort()).toEqual(files);
  });
});

test("the Postgres in compose.yaml is configured, like the embedded one, to log no row values", async () => {
  const [compose] = (await documentsIn("deploy/compose.yaml")) as {
    readonly services: Readonly<Record<string, { readonly command?: readonly string[] }>>;
  }[];
  const expectedOptions = Object.entries(redactingLogSettings).flatMap(([name, value]) => [
    "-c",
    `${name}=${value}`,
  ]);
  expect(compose?.services.postgres?.command).toEqual(["postgres", ...expectedOptions]);
});

/** Docker's default address pools: a network gets the next free one, and after 172.31 one of 192.168. */
const dockerPools = [
  ...Array.from({ length: 15 }, (_, index) => `172.${17 + index}.0.1`),
  ...Array.from({ length: 16 }, (_, index) => `192.168.${16 * index}.1`),
];

test("the service in compose.yaml trusts the gateway of its network, whichever address Docker gives it", async () => {
  const [compose] = (await documentsIn("deploy/compose.yaml")) as {
    readonly services: Readonly<Record<string, { readonly environment?: Record<string, string> }>>;
  }[];
  const { TRUSTED_PROXIES } = compose?.services.api?.environment ?? {};
  const trusted = new BlockList();
  for (const range of parseConfig({ TRUSTED_PROXIES }).trustedProxies) {
    const [address = "", bits] = range.split("/");
    trusted.addSubnet(address, Number(bits ?? 32));
  }
  expect(dockerPools.filter((gateway) => !trusted.check(gateway))).toEqual([]);
  expect(trusted.check("203.0.113.9")).toBe(false);
});

/** The margin that a stop timeout needs, because a busy machine is slow. */
const roomSeconds = 5;

test("stop timeouts of systemd, compose and Kubernetes are longer than a graceful shutdown", async () => {
  const { drainSeconds } = parseConfig({ DATABASE_URL: "postgres://localhost/phoneproof" });
  const [compose] = (await documentsIn("deploy/compose.yaml")) as {
    readonly services: Readonly<
      Record<string, { readonly environment?: Record<string, string>; readonly stop_grace_period?: string }>
    >;
  }[];
  const unit = await readFile(path.join(root, "deploy/systemd/phoneproof@.service"), "utf8");
  const all = await manifests();
  const settings = all.find(({ kind }) => kind === "ConfigMap")?.data;
  const waits = [
    { name: "systemd", drains: drainSeconds, stopTimeout: Number(/^TimeoutStopSec=(\d+)$/m.exec(unit)?.[1]) },
    ...Object.entries(compose?.services ?? {})
      .filter(([, { environment }]) => environment?.ROLES !== undefined)
      .map(([name, { environment, stop_grace_period }]) => ({
        name,
        drains: Number(environment?.DRAIN_SECONDS ?? drainSeconds),
        stopTimeout: Number(stop_grace_period?.replace(/s$/, "")),
      })),
    ...all
      .filter(({ kind }) => kind === "Deployment")
      .map(({ spec }, index) => ({
        name: `deployment ${index}`,
        drains: Number(settings?.DRAIN_SECONDS ?? drainSeconds),
        stopTimeout: spec?.template?.spec.terminationGracePeriodSeconds ?? 30,
      })),
  ];
  expect(waits).toHaveLength(5);
  const tooShort = waits.filter(
    ({ drains, stopTimeout }) => !(stopTimeout >= drains + closeTimeoutMs.amongOthers / 1_000 + roomSeconds),
  );
  expect(tooShort).toEqual([]);
});

test("tracing is off by default, and the network policy allows both roles to reach the suggested collector", async () => {
  const text = await readFile(path.join(root, "deploy/kubernetes/settings.yaml"), "utf8");
  const [, line = "", namespace = "", port = ""] =
    /^( *# )OTEL_EXPORTER_OTLP_ENDPOINT: http:\/\/\w+\.(\w+):(\d+)$/m.exec(text) ?? [];
  expect(line).toBe("  # ");
  const policies = (await manifests()).filter(({ kind }) => kind === "NetworkPolicy");
  expect(policies.map(({ spec }) => spec)).toContainEqual({
    podSelector: { matchLabels: { "app.kubernetes.io/name": "phoneproof" } },
    policyTypes: ["Egress"],
    egress: [
      {
        to: [{ namespaceSelector: { matchLabels: { "kubernetes.io/metadata.name": namespace } } }],
        ports: [{ port: Number(port), protocol: "TCP" }],
      },
    ],
  });
});

const systemdAnalyze = findProgram("systemd-analyze");

if (systemdAnalyze !== undefined)
  test("systemd-analyze finds the unit well-formed and its exposure low", async () => {
    const unit = "deploy/systemd/phoneproof@.service";
    // It may complain that a release or Node is not installed, but not about a line of the unit.
    const verified = await run(systemdAnalyze, ["verify", unit], { cwd: root }).catch((error) => error);
    expect(verified.stderr).not.toMatch(/phoneproof@\S*:\d+:/);
    const limit = "--threshold=20";
    const { stdout } = await run(systemdAnalyze, ["security", "--offline=true", "--no-pager", limit, unit], {
      cwd: root,
    });
    expect(stdout).toContain("Overall exposure level");
  });

/** The lock file names no addresses, so npm looks each version up in the package's description. */
test("npm ci does not rely on cached descriptions, which may be older than the pinned versions", async () => {
  const env = { PATH: process.env.PATH };
  const { stdout } = await run("npm", ["config", "get", "prefer-offline"], { cwd: root, env });
  expect(stdout).toBe("false\n");
});

test("all start commands pass the same flags to Node, which keep SIGUSR1 from opening a debugger", async () => {
  const starts = [
    "bin/start.sh",
    "deploy/Containerfile",
    "deploy/systemd/phoneproof@.service",
    "deploy/cluster/service-process.ts",
  ];
  for (const file of starts) {
    const text = await readFile(path.join(root, file), "utf8");
    expect(text.match(/--[a-z0-9-]+(=\d+)?(?=[^\n]*(bin\/start\.mjs|program\]))/g), file).toEqual([
      "--disable-sigusr1",
      "--max-semi-space-size=16",
    ]);
  }
  expect(startFlags, "the bench").toEqual(["--disable-sigusr1", "--max-semi-space-size=16"]);
});
