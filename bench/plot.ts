/** Plots of throughput and latency for the documentation. */

import { writeFile } from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { installPackages } from "./measuring-packages.ts";

export interface PlotLine {
  readonly name: string;
  /** Points as [x, y]. */
  readonly points: readonly (readonly [number, number])[];
}

export interface Plot {
  readonly title: string;
  readonly x: { readonly name: string; readonly logarithmic: boolean };
  readonly lines: readonly PlotLine[];
}

const panelWidth = 480;
const height = 340;

/** What is used of echarts, whose own types are not there before the first plot. */
interface Echarts {
  init(
    element: null,
    theme: null,
    options: object,
  ): { setOption(option: object): void; renderToSVGString(): string; dispose(): void };
}

/** Draws the plots side by side in one SVG. The first call installs echarts in bench/plot. */
export async function drawPlots(file: string, plots: readonly Plot[]): Promise<void> {
  const folder = await installPackages("plot");
  const { init }: Echarts = await import(
    pathToFileURL(path.join(folder, "node_modules/echarts/index.js")).href
  );
  const chart = init(null, null, { renderer: "svg", ssr: true, width: panelWidth * plots.length, height });
  chart.setOption({
    animation: false,
    backgroundColor: "#ffffff",
    title: plots.map(({ title }, panel) => ({
      text: title,
      left: panel * panelWidth + 16,
      top: 10,
      textStyle: { fontSize: 14 },
    })),
    legend: {
      data: [...new Set(plots.flatMap(({ lines }) => lines.map(({ name }) => name)))],
      bottom: 6,
    },
    grid: plots.map((_, panel) => ({
      left: panel * panelWidth + 64,
      width: panelWidth - 112,
      top: 48,
      bottom: 84,
    })),
    xAxis: plots.map(({ x }, panel) => ({
      gridIndex: panel,
      type: x.logarithmic ? "log" : "value",
      name: x.name,
      nameLocation: "middle",
      nameGap: 28,
    })),
    yAxis: plots.map((_, panel) => ({ gridIndex: panel, type: "value", min: 0 })),
    series: plots.flatMap(({ lines }, panel) =>
      lines.map(({ name, points }) => ({
        name,
        type: "line",
        xAxisIndex: panel,
        yAxisIndex: panel,
        data: points.map((point) => [...point]),
        symbolSize: 6,
      })),
    ),
  });
  const svg = chart.renderToSVGString();
  chart.dispose();
  await writeFile(file, `${svg}\n`);
}
