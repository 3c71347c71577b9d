import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { expect, test } from "vitest";
import { parse } from "yaml";
import { readPage } from "../docs/pages.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "./scrape.ts";

const root = path.join(import.meta.dirname, "../..");
const read = (file: string) => readFileSync(path.join(root, file), "utf8");

interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly labels: { readonly severity: string };
  readonly annotations: Readonly<Record<string, string>>;
}

const rules = (parse(read("deploy/monitoring/alerts.yml")) as { groups: { rules: Rule[] }[] }).groups.flatMap(
  (group) => group.rules,
);

interface Panel {
  readonly id: number;
  readonly title: string;
  readonly targets?: readonly { readonly expr: string }[];
}

const dashboard = JSON.parse(read("deploy/monitoring/dashboard.json")) as { panels: Panel[] };
const monitoring = read("docs/monitoring.md");
const { headings } = readPage("docs/runbook.md");

/** Every metric name of a registry, even if it has no value yet. */
function namesIn(text: string): Set<string> {
  const names = [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].flatMap(([, name = "", type]) =>
    type === "histogram" ? [`${name}_bucket`, `${name}_sum`, `${name}_count`] : [name],
  );
  return new Set(names);
}

const words = new Set(["and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset"]);

/** The metrics of a PromQL expression: what is not a function, keyword, label, number or range. */
function metricsIn(expression: string): string[] {
  const bare = expression
    .replace(/"[^"]*"/g, "")
    .replace(/\{[^}]*\}/g, "")
    .replace(/\[[^\]]*\]/g, "")
    .replace(/\b(by|without|on|ignoring)\s*\([^)]*\)/g, "");
  return [...bare.matchAll(/(?<![\w.])[a-z_:][\w:]*(?!\w|\s*\()/gi)]
    .map(([name]) => name)
    .filter((name) => !words.has(name));
}

const service = await startTestService();
const { text } = await scrape(service.opsUrl);
const names = namesIn(text);

test("metricsIn finds all metrics of an expression", () => {
  expect(
    metricsIn('sum by (le, a) (rate(one_bucket{b="two"}[5m])) / 1.5e3 > on (c) max(three) and four == 0'),
  ).toEqual(["one_bucket", "three", "four"]);
});

test.for(rules)("$alert: its metrics exist, and docs/runbook.md says what to do", ({
  alert,
  expr,
  annotations,
}) => {
  const metrics = metricsIn(expr);
  expect(metrics.length).toBeGreaterThan(0);
  // `up` is Prometheus' own: whether a scrape succeeded.
  expect(metrics.filter((name) => name !== "up" && !names.has(name))).toEqual([]);
  expect(annotations.summary).toMatch(/\.$/);
  expect(annotations.action).toMatch(/\.$/);
  const anchor = alert.toLowerCase();
  expect(annotations.runbook_url).toBe(`{{ or $externalLabels.runbooks "docs" }}/runbook.md#${anchor}`);
  expect(headings).toContainEqual({ level: 3, title: alert, anchor });
});

test("every alert has a section in docs/runbook.md, and every such section an alert", () => {
  const titles = headings.map(({ title }) => title).filter((title) => title.startsWith("Phoneproof"));
  expect(titles.sort()).toEqual(rules.map(({ alert }) => alert).sort());
});

test("docs/monitoring.md lists every alert under its severity", () => {
  const documentedAlerts = [...monitoring.matchAll(/^\| `(critical|warning|info)` \|.*$/gm)].flatMap(
    ([row, severity = ""]) =>
      [...row.matchAll(/\[(\w+)\]\(runbook\.md#(\w+)\)/g)].map(([, alert = "", anchor]) => {
        expect(anchor).toBe(alert.toLowerCase());
        return { alert, severity };
      }),
  );
  const ordered = (list: typeof documentedAlerts) =>
    list.sort((one, other) => one.alert.localeCompare(other.alert));
  expect(ordered(documentedAlerts)).toEqual(
    ordered(rules.map(({ alert, labels }) => ({ alert, ...labels }))),
  );
});

test("the metrics to watch first exist, with queries that show them", () => {
  const [, section = ""] = /\n## What to watch first\n([\s\S]*?)\n## /.exec(monitoring) ?? [];
  const rows = [...section.matchAll(/^\| `(\w+)` \| `([^`]+)` \|/gm)];
  expect(rows).toHaveLength(5);
  for (const [, metric = "", query = ""] of rows) {
    const [shown = ""] = metricsIn(query);
    expect(names).toContain(shown);
    expect(shown.replace(/_count$/, "")).toBe(metric);
  }
});

test("each section about an incident names the alerts that lead to it", () => {
  const [, incidents = ""] = read("docs/runbook.md").split("\n## When something is wrong\n");
  const [, leak = ""] = read("docs/secrets.md").split(/\n## (?=A key has leaked\n)/);
  const pages = [...incidents.split("\n### ").slice(1), leak.split("\n## ")[0] ?? ""];
  expect(pages).toHaveLength(6);
  for (const page of pages) {
    const named = [...page.matchAll(/\[(Phoneproof\w+)\]\((?:runbook\.md)?#(\w+)\)/g)];
    expect(named.length, page.slice(0, 80)).toBeGreaterThan(0);
    for (const [, name = "", anchor] of named) {
      expect(rules.map(({ alert }) => alert)).toContain(name);
      expect(anchor).toBe(name.toLowerCase());
    }
  }
});

interface Scraped {
  readonly global: { readonly external_labels: Readonly<Record<string, string>> };
  readonly scrape_configs: readonly {
    readonly job_name: string;
    readonly static_configs?: readonly {
      readonly targets: readonly string[];
      readonly labels: Readonly<Record<string, string>>;
    }[];
  }[];
}

test("every process of the compose file is scraped at its published port, with its role", () => {
  const compose = parse(read("deploy/compose.yaml"), { merge: true }) as {
    services: Record<string, { environment?: Record<string, string>; ports?: string[] }>;
  };
  const published = Object.values(compose.services).flatMap(({ environment, ports = [] }) =>
    environment?.ROLES === undefined
      ? []
      : [
          {
            target: ports.find((port) => port.endsWith(":9464"))?.replace(/:9464$/, ""),
            role: environment.ROLES,
          },
        ],
  );
  expect(published.map(({ role }) => role)).toEqual(["api", "worker"]);
  const { scrape_configs, global } = parse(read("deploy/monitoring/prometheus.yml")) as Scraped;
  const scraped = scrape_configs.flatMap(({ job_name, static_configs = [] }) =>
    static_configs.flatMap(({ targets, labels }) =>
      targets.map((target) => ({ job_name, target, role: labels.role })),
    ),
  );
  expect(scraped).toEqual(published.map((process) => ({ job_name: "phoneproof", ...process })));
  expect(global.external_labels.runbooks).toMatch(/^https:\/\/.*\/docs$/);
});

test("every pod is scraped by the port name that the manifests give it", () => {
  const text = read("deploy/monitoring/prometheus-kubernetes.yml");
  const { scrape_configs, global } = parse(text) as Scraped;
  expect(scrape_configs.map(({ job_name }) => job_name)).toEqual(["phoneproof"]);
  expect(global.external_labels.runbooks).toMatch(/^https:\/\/.*\/docs$/);
  expect(text).toContain("regex: phoneproof;ops");
  for (const role of ["api", "worker"]) {
    const manifest = read(`deploy/kubernetes/${role}.yaml`);
    expect(manifest).toContain("{ name: ops, containerPort: 9464 }");
    expect(manifest).toContain(`app.kubernetes.io/name: phoneproof, app.kubernetes.io/component: ${role} }`);
  }
});

test("the dashboard's metrics exist, and its panels have distinct ids", () => {
  const { panels } = dashboard;
  expect(new Set(panels.map(({ id }) => id)).size).toBe(panels.length);
  const expressions = panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
  expect(expressions.length).toBeGreaterThan(30);
  expect(expressions.flatMap(metricsIn).filter((name) => !names.has(name))).toEqual([]);
});

// Between two bounds a quantile is interpolated: half of the batches of one request would have half a request.
test("quantiles are drawn of durations only", () => {
  const quantiles = dashboard.panels
    .flatMap(({ targets = [] }) => targets.map(({ expr }) => expr))
    .filter((expr) => expr.includes("histogram_quantile"));
  expect(quantiles.length).toBeGreaterThan(5);
  expect(quantiles.flatMap(metricsIn).filter((name) => !name.endsWith("_seconds_bucket"))).toEqual([]);
});

test("what has a label environment is drawn for the chosen one, or for each by itself", () => {
  const drawn = dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
  const labelled = [...monitoring.matchAll(/^\| `(phoneproof_\w+)` \|([^|]*`environment`[^|]*)\|/gm)].map(
    ([, name = ""]) => name,
  );
  expect(labelled.length).toBeGreaterThan(4);
  const of = (name: string) =>
    drawn.filter((expr) => metricsIn(expr).some((metric) => metric.startsWith(name)));
  expect(labelled.flatMap(of).filter((expr) => !expr.includes("environment"))).toEqual([]);
});

test("every metric of the service is in docs/monitoring.md with its labels and type, and on the dashboard", async () => {
  const types = [...text.matchAll(/^# TYPE (phoneproof_\S+) (\S+)$/gm)].map(([, name = "", type]) => [
    name,
    type,
  ]);
  const shown = types.map(([name = ""]) => name);
  const [, table = ""] = /\n## Metrics\n([\s\S]*?)\n## /.exec(monitoring) ?? [];
  const documented = [...table.matchAll(/^\| `(phoneproof_\w+)` \|(.*?)\| (\w+) \|/gm)];
  expect(documented.map(([, name, , type]) => [name, type]).sort()).toEqual(types.sort());
  const drawn = dashboard.panels.flatMap(({ targets = [] }) =>
    targets.flatMap(({ expr }) => metricsIn(expr)),
  );
  const families = new Set(drawn.map((name) => name.replace(/_(bucket|sum|count)$/, "")));
  expect(shown.filter((name) => !families.has(name) && !drawn.includes(name))).toEqual([]);
  // Only metrics that have values by now.
  const { samples } = await scrape(service.opsUrl);
  for (const [, name = "", labels = ""] of documented) {
    const sample = samples.find((found) => found.name === name || found.name === `${name}_count`);
    if (sample === undefined) continue;
    const known = [...labels.matchAll(/`(\w+)`/g)].map(([, label]) => label);
    expect({ name, labels: Object.keys(sample.labels) }).toEqual({ name, labels: known });
  }
});

interface RuleTests {
  readonly tests: readonly {
    readonly alert_rule_test: readonly {
      readonly alertname: string;
      readonly exp_alerts: readonly unknown[];
    }[];
  }[];
}

test("for every alert, Prometheus' tests have a time at which it fires", () => {
  const fired = ["alerts.test.yml", "alerts.week.test.yml"]
    .flatMap((file) => (parse(read(`deploy/monitoring/${file}`)) as RuleTests).tests)
    .flatMap((one) => one.alert_rule_test.filter(({ exp_alerts }) => exp_alerts.length > 0))
    .map(({ alertname }) => alertname);
  expect([...new Set(fired)].sort()).toEqual(rules.map(({ alert }) => alert).sort());
});

/** Prometheus' own tool, which Debian packages. The tests above compare the metric names with a live scrape without it. */
const promtool = ["/usr/bin/promtool"].filter((file) => existsSync(file));
if (promtool.length === 0) noteAbsence("promtool", "the alert rules, by Prometheus' own tests of them");

test.for(
  promtool.flatMap((tool) => [
    [tool, "check", "rules", "alerts.yml"],
    [tool, "check", "config", "prometheus.yml"],
    [tool, "test", "rules", "alerts.test.yml"],
    [tool, "test", "rules", "alerts.week.test.yml"],
  ]),
)("%s %s %s %s", ([tool = "", ...command]) => {
  const options = { cwd: path.join(root, "deploy/monitoring"), encoding: "utf8", stdio: "pipe" } as const;
  expect(execFileSync(tool, command, options)).toContain("SUCCESS");
});
