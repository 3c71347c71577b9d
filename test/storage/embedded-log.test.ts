/** The log of the embedded Postgres. */

import { mkdir, stat, writeFile } from "node:fs/promises";
import path from "node:path";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { openLog, reasonIn } from "../../src/storage/embedded/postgres-log.ts";
import { dataDir, initialise, prepareDataDirectories, start } from "./embedded-server.ts";

prepareDataDirectories();

describe("the server's log", () => {
  test.for([
    {
      of: "an initialisation",
      log: `running bootstrap script ... 2026-11-24 21:09:02.153 UTC [8078] FATAL:  could not extend file "base/1/2691": No space left on device
2026-11-24 21:09:02.153 UTC [8078] HINT:  Check free disk space.
2026-11-24 21:09:02.153 UTC [8078] PANIC:  cannot abort transaction 1, it was already committed
Aborted
`,
      reason: 'could not extend file "base/1/2691": No space left on device (Check free disk space.)',
    },
    {
      of: "a start with room for half a page",
      log: `2026-11-25 03:35:02.153 UTC [8078] ERROR:  could not extend file "base/16384/16549": wrote only 4096 of 8192 bytes at block 0
2026-11-25 03:35:02.153 UTC [8078] HINT:  Check free disk space.
2026-11-25 03:35:02.160 UTC [8070] LOG:  database system is shut down
`,
      reason:
        'could not extend file "base/16384/16549": wrote only 4096 of 8192 bytes at block 0 (Check free disk space.)',
    },
    { of: "a program without an error message", log: "Aborted\nKilled\n", reason: "Killed" },
    {
      of: "a recovery",
      log: `2026-11-25 03:08:04.893 UTC [2898] LOG:  redo done at 0/19BCD70 system usage: CPU: user: 0.01 s, system: 0.00 s, elapsed: 0.03 s
2026-11-25 03:08:04.896 UTC [2896] ERROR:  could not write blocks 24..24 in file "base/16384/1249": No space left on device
2026-11-25 03:08:04.896 UTC [2898] FATAL:  checkpoint request failed
2026-11-25 03:08:04.898 UTC [2892] LOG:  startup process (PID 2898) exited with exit code 1
2026-11-25 03:08:04.905 UTC [2892] LOG:  database system is shut down
`,
      reason: 'could not write blocks 24..24 in file "base/16384/1249": No space left on device',
    },
  ])("of $of that failed yields the reason, and not its consequences", ({ log, reason }) => {
    expect(reasonIn(log)).toBe(reason);
  });

  test("is rotated when it exceeds 10 MB, keeping one old file", async () => {
    await initialise();
    const log = path.join(dataDir, "postgres.log");
    await writeFile(log, "x".repeat(10 * 1024 * 1024 + 1));
    await writeFile(`${log}.1`, "of the time before");
    await start();
    expect((await stat(log)).size).toBeLessThan(10_000);
    expect((await stat(`${log}.1`)).size).toBe(10 * 1024 * 1024 + 1);
  });

  test("does not keep the server from starting if it cannot be rotated, as on a full disk", async () => {
    await initialise();
    const log = path.join(dataDir, "postgres.log");
    await writeFile(log, "x".repeat(10 * 1024 * 1024 + 1));
    // Nor can it be copied to a directory.
    await mkdir(`${log}.1`);
    await start();
    expect((await stat(log)).size).toBeGreaterThan(10 * 1024 * 1024 + 1);
  });

  test("is rotated while the server runs, too, if that is possible, and no more once it is closed", async () => {
    vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
    onTestFinished(() => {
      vi.useRealTimers();
    });
    const files = ["rotated.log", "kept.log"].map((name) => path.join(dataDir, name));
    const logs = [];
    for (const file of files) {
      logs.push(await openLog(file));
      await writeFile(file, "x".repeat(10 * 1024 * 1024 + 1));
    }
    await mkdir(`${files[1]}.1`);
    vi.advanceTimersByTime(60_000);
    for (const log of logs) await log.close();
    expect(vi.getTimerCount()).toBe(0);
    const sizes = [];
    for (const file of files) sizes.push((await stat(file)).size);
    expect(sizes).toEqual([0, 10 * 1024 * 1024 + 1]);
  });
});
