import { expect, onTestFinished, test, vi } from "vitest";
import { startTestService } from "../harness/service.ts";
import { letExpire } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { createWindow } from "./open-window.ts";

const service = await startTestService();
const project = await service.createProject();
const cli = smsSource(service);

async function presetsOf(page: string): Promise<string[]> {
  return [...page.matchAll(/data-preset="([^"]*)"/g)].map(([, text = ""]) => text);
}

test("the simulated phone reaches every outcome but MUTED with the texts that it offers", async () => {
  const phone = newPhone();
  const window = await createWindow(service, project, { mode: "match", expected_phone: phone });
  const [asAsked = "", webSent = "", twoCodes = "", withoutCode = ""] = await presetsOf(
    (await window.get()).text,
  );
  const outcome = async (from: string, text: string) => (await window.receipt({ from, text })).outcome;
  expect(await outcome(newPhone(), asAsked)).toBe("SENDER_MISMATCH");
  expect(await outcome(phone, webSent)).toBe("WEB_SENT");
  expect(await outcome(phone, twoCodes)).toBe("AMBIGUOUS");
  expect(await outcome(phone, withoutCode)).toBe("NO_MATCH");
  expect(await outcome("02-123-4567", asAsked)).toBe("INVALID");
  expect(await outcome(phone, asAsked)).toBe("VERIFIED");
  expect(await outcome(newPhone(), asAsked)).toBe("NOT_PENDING");
  const late = await createWindow(service, project);
  await letExpire(service.db, late.id);
  expect((await late.receipt({})).outcome).toBe("LATE");
});

test.for([
  { format: "numeric", codeFormat: 1, codeLength: 6 },
  { format: "numeric", codeFormat: 1, codeLength: 10 },
  { format: "alphanumeric", codeFormat: 2, codeLength: 6 },
  { format: "alphanumeric", codeFormat: 2, codeLength: 12 },
] as const)("the preset with several codes is AMBIGUOUS with $format codes of length $codeLength", async ({
  codeFormat,
  codeLength,
}) => {
  const shop = await service.createProject({ codeFormat, codeLength });
  const window = await createWindow(service, shop);
  const [, , twoCodes = ""] = await presetsOf((await window.get()).text);
  expect((await window.receipt({ text: twoCodes })).outcome).toBe("AMBIGUOUS");
});

test("the panel says which sender verifies if one is expected", async () => {
  const expecting = await createWindow(service, project, { mode: "match", expected_phone: newPhone() });
  const { text } = await expecting.get();
  expect(text).toMatch(/<p [^>]*id="play-sender">[^<]*expected_phone과 같으면/);
  expect(text).toMatch(/<input name="from"[^>]* aria-describedby="play-sender">/);
  const open = await createWindow(service, project);
  expect((await open.get()).text).not.toContain("expected_phone");
});

test("a text may have 2,000 characters, however many bytes they take in a form", async () => {
  const window = await createWindow(service, project);
  for (const character of ["가", "\u{1f600}"]) {
    const text = (count: number) => window.text + character.repeat(count - window.text.length);
    expect((await window.receipt({ from: newPhone(), text: text(2_001) })).outcome).toBe("INVALID");
    expect((await window.receipt({ from: newPhone(), text: text(2_000) })).outcome).not.toBe("INVALID");
  }
});

test("of a form, nothing but a message's fields is parsed, however many others it has", async () => {
  const window = await createWindow(service, project);
  const text = encodeURIComponent(window.text).replaceAll("%20", "+");
  const others = "a&context=b&".repeat(700);
  const body = `${others}carrier=LGU%2B&text=${text}&${others}from=010-1234-5678&text=another&${others}`;
  const parsing = vi.spyOn(globalThis, "URLSearchParams");
  onTestFinished(() => parsing.mockRestore());
  const headers = { accept: "application/json", "content-type": "application/x-www-form-urlencoded" };
  const sent = await fetch(`${window.url}/messages`, { method: "POST", body, headers });
  expect(await sent.json()).toMatchObject({ outcome: "VERIFIED" });
  expect((await window.get()).text).toContain("LGU+");
  const parsed = parsing.mock.calls.map(([given]) => String(given));
  expect(parsed).toContain(`from=010-1234-5678&text=${text}&carrier=LGU%2B`);
  expect(parsed.filter((given) => given.length > 1_000)).toEqual([]);
});

test("a line break counts as one character, although forms send two", async () => {
  const window = await createWindow(service, project);
  const lines = (count: number) => window.text + "\r\n".repeat(count - window.text.length);
  expect((await window.receipt({ from: newPhone(), text: lines(2_001) })).outcome).toBe("INVALID");
  expect((await window.receipt({ from: newPhone(), text: lines(2_000) })).outcome).toBe("VERIFIED");
});

test("the receipt of a repeated message says that it is a repeat", async () => {
  const window = await createWindow(service, project, { mode: "match", expected_phone: newPhone() });
  await window.receipt({});
  expect(await window.receipt({})).toEqual({
    outcome: "SENDER_MISMATCH",
    message: expect.stringContaining("1분 안에 같은 문자가 있었어요"),
  });
});

test("simulated messages do not count towards muting and are never muted", async () => {
  const phone = newPhone();
  const window = await createWindow(service, project);
  for (let guess = 0; guess < 6; guess++) {
    expect((await window.receipt({ from: phone, text: `안녕하세요 ${guess}` })).outcome).toBe("NO_MATCH");
  }
  const guesses = Array.from({ length: 6 }, (_, guess) => ({
    to: window.to,
    text: `추측 ${guess}`,
    from: phone,
  }));
  const receipts = await cli.sendAll(guesses);
  expect(receipts.map(({ outcome }) => outcome)).toEqual([...Array(5).fill("NO_MATCH"), "MUTED"]);
  expect((await window.receipt({ from: phone })).outcome).toBe("VERIFIED");
});

test("a simulated message is not muted as the repeat of a message that was muted, and leaves that one's receipt alone", async () => {
  const phone = newPhone();
  const window = await createWindow(service, project);
  const real = (text: string) => ({ to: window.to, from: phone, text });
  await cli.sendAll(Array.from({ length: 5 }, (_, guess) => real(`짐작 ${guess}`)));
  const wrong = "코드 없는 문자";
  const muted = await cli.sendAll([real(window.text), real(wrong)]);
  expect(muted.map(({ outcome }) => outcome)).toEqual(["MUTED", "MUTED"]);

  expect((await window.receipt({ from: phone, text: wrong })).outcome).toBe("NO_MATCH");
  expect((await window.receipt({ from: phone })).outcome).toBe("VERIFIED");
  expect(await cli.sendAll([real(wrong)])).toMatchObject([{ outcome: "MUTED", duplicate: true }]);
  expect(await window.receipt({ from: phone })).toEqual({
    outcome: "VERIFIED",
    message: expect.stringContaining("1분 안에 같은 문자가 있었어요"),
  });
});

test("messages go to the verification's own destination, whatever the request says", async () => {
  const elsewhere = await service.createProject();
  const [window, theirs] = [await createWindow(service, project), await createWindow(service, elsewhere)];
  const body = new URLSearchParams({
    from: newPhone(),
    text: theirs.text,
    to: elsewhere.testNumber,
    carrier: "SKT",
  });
  const answer = await fetch(`${window.url}/messages`, {
    method: "POST",
    body,
    headers: { accept: "application/json" },
  });
  expect(await answer.json()).toMatchObject({ outcome: "NO_MATCH" });
});

test.for([
  { accept: "application/json, text/plain, */*", isProgram: true },
  { accept: "application/*+json;q=0.5,Application/JSON;q=0.9", isProgram: true },
  { accept: "application/json;q=0.9,text/html", isProgram: false },
  { accept: "text/html,application/xhtml+xml,*/*;q=0.8", isProgram: false },
  { accept: "*/*", isProgram: false },
])("whoever accepts $accept is a program: $isProgram", async ({ accept, isProgram }) => {
  const window = await createWindow(service, project);
  const body = new URLSearchParams({ from: newPhone(), text: window.text, carrier: "SKT" });
  const send = (address: string) =>
    fetch(`${address}/messages`, { method: "POST", body, headers: { accept }, redirect: "manual" });
  const receipt = await send(window.url);
  expect(receipt.status).toBe(isProgram ? 200 : 303);
  if (isProgram) expect(await receipt.json()).toMatchObject({ outcome: "VERIFIED" });
  const refusal = await send(`${window.url}x`);
  const type = isProgram ? "application/json; charset=utf-8" : "text/html; charset=utf-8";
  expect([refusal.status, refusal.headers.get("content-type")]).toEqual([404, type]);
});

test("the live environment has no simulated phone", async () => {
  const window = await createWindow(service, project, {}, "live");
  expect((await window.get()).text).not.toContain("<form");
  expect((await window.play({})).status).toBe(404);
  expect((await window.get("/status")).text).toContain('"status":"pending"');
});

test("a program is refused in JSON, with the contract's error object: without a panel, for a wrong body, and too often", async () => {
  const { url } = await createWindow(service, project, {}, "live");
  const window = await createWindow(service, project);
  const refusalOf = async (address: string, body: URLSearchParams | string) => {
    const headers = { accept: "application/json" };
    const answer = await fetch(`${address}/messages`, { method: "POST", body, headers });
    expect(answer.headers.get("content-type")).toBe("application/json; charset=utf-8");
    const { error } = (await answer.json()) as { error?: Record<string, string> };
    if (error) expect(error.request_id).toBe(answer.headers.get("x-request-id"));
    return [answer.status, error?.code, error?.message];
  };
  const form = new URLSearchParams({ from: newPhone(), text: "안녕하세요", carrier: "" });
  const noPanel = [404, "not_found", expect.stringMatching(/test environment.*form .*32 KiB/)];
  expect(await refusalOf(url, form)).toEqual(noPanel);
  expect(await refusalOf(window.url, "{}")).toEqual(noPanel);
  expect(await refusalOf(window.url, new URLSearchParams({ text: "x".repeat(33 * 1024) }))).toEqual(noPanel);
  const answers = await Promise.all(Array.from({ length: 31 }, () => refusalOf(window.url, form)));
  expect(answers).toContainEqual([429, "rate_limited", expect.any(String)]);
});

test("without JavaScript, the page that refuses a message too many leads back to the window", async () => {
  const window = await createWindow(service, project);
  const body = new URLSearchParams({ from: newPhone(), text: "안녕하세요", carrier: "" });
  const send = () => fetch(`${window.url}/messages?lang=en`, { method: "POST", body, redirect: "manual" });
  const refused = (await Promise.all(Array.from({ length: 31 }, send))).find(({ status }) => status === 429);
  const [, link = ""] = /<a class="button" href="([^"]+)">/.exec((await refused?.text()) ?? "") ?? [];
  expect(new URL(link, `${window.url}/messages`).href).toBe(`${window.url}?lang=en`);
});

test("the form works without JavaScript, and the page shows the receipt", async () => {
  const window = await createWindow(service, project);
  const body = new URLSearchParams({ from: newPhone(), text: "안녕하세요\r\n", carrier: "" });
  const answer = await fetch(`${window.url}/messages?lang=en`, { method: "POST", body, redirect: "manual" });
  expect(answer.status).toBe(303);
  const location = new URL(answer.headers.get("location") ?? "", `${window.url}/messages`);
  expect(location.pathname).toBe(new URL(window.url).pathname);
  const page = await window.get(location.search);
  expect(page.text).toContain("NO_MATCH: It contained no code known on this number.</p>");
  const again = await fetch(`${window.url}/messages?lang=en`, { method: "POST", body, redirect: "manual" });
  const repeated = await window.get(new URL(again.headers.get("location") ?? "", window.url).search);
  expect(repeated.text).toContain("NO_MATCH: It contained no code known on this number. The same was sent");
});

test.for([
  {
    name: "a body that is not a form",
    init: { body: "{}", headers: { "content-type": "application/json" } },
  },
  { name: "no body", init: {} },
  { name: "a body over 16 KiB", init: { body: new URLSearchParams({ text: "x".repeat(20_000) }) } },
  { name: "a NUL", init: { body: new URLSearchParams({ from: "\0", text: "\0" }) } },
])("$name causes no error and leaves the verification pending", async ({ init }) => {
  const window = await createWindow(service, project);
  const answer = await fetch(`${window.url}/messages`, { method: "POST", redirect: "manual", ...init });
  expect([303, 404]).toContain(answer.status);
  expect((await window.get("/status")).text).toContain('"status":"pending"');
});
