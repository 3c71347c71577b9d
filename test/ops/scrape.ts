/** The metrics at the ops port, as Prometheus reads them. */

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export interface Scrape {
  readonly text: string;
  readonly samples: readonly Sample[];
  /** The sum of the samples with this name and these labels; 0 if there are none. */
  sum(name: string, labels?: Readonly<Record<string, string>>): number;
}

export async function scrape(opsUrl: string): Promise<Scrape> {
  const response = await fetch(`${opsUrl}/metrics`);
  if (response.status !== 200) throw new Error(`the scrape was answered ${response.status}`);
  const text = await response.text();
  const samples = text
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("#"))
    .map(sampleIn);
  return {
    text,
    samples,
    sum: (name, labels = {}) =>
      samples
        .filter((sample) => sample.name === name)
        .filter((sample) => Object.entries(labels).every(([label, value]) => sample.labels[label] === value))
        .reduce((sum, { value }) => sum + value, 0),
  };
}

/** A line of the text format: `name{label="value",…} 1.5`. */
function sampleIn(line: string): Sample {
  const [, name = "", labels = "", value] = /^([a-z_A-Z:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
  if (value === undefined) throw new Error(`not a sample: ${line}`);
  const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, label, text]) => [label, text]);
  return { name, labels: Object.fromEntries(pairs), value: Number(value.replace("Inf", "Infinity")) };
}
