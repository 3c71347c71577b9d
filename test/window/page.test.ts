import { hash, randomBytes } from "node:crypto";
import jsQr from "jsqr";
import { pino } from "pino";
import { expect, test } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { startService } from "../../src/service.ts";
import type { WindowState } from "../../src/window/browser/state.ts";
import { byTheClock, installClock, moveClock, resetClock, stopClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { codeIn, letExpire, uuidOf } from "../service/pending.ts";
import { newPhone } from "../service/sms-source.ts";
import { android, createWindow, getPage, iphone, openStream } from "./open-window.ts";

const service = await startTestService();
const returnUrl = "https://shop.example/back?order=7&a=%20b#top#2";
const project = await service.createProject({
  name: `<b>"Shop" & {name} $&$'`,
  smsTemplate: "본인확인 {code} & 보내세요",
  parentOrigin: "https://shop.example",
  returnUrl,
});

const phones = [
  { name: "Android", userAgent: android, separator: "?" },
  { name: "iOS", userAgent: iphone, separator: "&" },
];
/** Browsers inside apps, and others than the phone's own, with what their user agents have in common with nothing else. */
const androidView = (model: string, chrome: string) =>
  `Mozilla/5.0 (Linux; Android 15; ${model} Build/AP3A.240905.015; wv) AppleWebKit/537.36 (KHTML, like Gecko) Version/4.0 Chrome/142.0.7444.48 ${chrome}`;
const iphoneView = (rest: string) =>
  `Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) ${rest}`;
const insideApps = [
  ...[
    ["KakaoTalk", androidView("SM-S931N", "Mobile Safari/537.36;KAKAOTALK 2511020")],
    [
      "Naver",
      androidView(
        "SM-S931N",
        "Whale/1.0.0.0 Crosswalk/29 Mobile Safari/537.36 NAVER(inapp; search; 2000; 12.14.3)",
      ),
    ],
    [
      "Instagram",
      androidView(
        "SM-S931N",
        "Mobile Safari/537.36 Instagram 401.0.0.48.79 Android (35/15; 480dpi; 1080x2340)",
      ),
    ],
    ["Facebook", androidView("SM-S931N", "Mobile Safari/537.36 [FB_IAB/FB4A;FBAV/530.0.0.48.74;]")],
    ["LINE", androidView("SM-S931N", "Mobile Safari/537.36 Line/15.15.0/IAB")],
    [
      "KakaoTalk on a foldable phone that is unfolded",
      androidView("SM-F966N", "Safari/537.36;KAKAOTALK 2511020"),
    ],
    [
      "Samsung Internet",
      "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/28.0 Chrome/130.0.0.0 Mobile Safari/537.36",
    ],
    [
      "Whale",
      "Mozilla/5.0 (Linux; Android 15; SM-S931N) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Whale/3.9.0.0 Mobile Safari/537.36",
    ],
  ].map(([name, userAgent]) => ({ name: `${name} (Android)`, userAgent, separator: "?" })),
  ...[
    ["KakaoTalk", iphoneView("Mobile/15E148 KAKAOTALK 25.10.1")],
    ["Naver", iphoneView("Mobile/15E148 NAVER(inapp; search; 2000; 12.14.3; 16PRO)")],
    [
      "Instagram",
      iphoneView(
        "Mobile/15E148 Instagram 401.0.0.29.78 (iPhone17,1; iOS 18_5; ko_KR; ko; scale=3.00; 1206x2622)",
      ),
    ],
    [
      "Facebook",
      iphoneView(
        "Mobile/15E148 [FBAN/FBIOS;FBAV/530.0.0.41.73;FBDV/iPhone17,1;FBMD/iPhone;FBSN/iOS;FBSV/18.5;FBID/phone]",
      ),
    ],
    ["LINE", iphoneView("Mobile/15E148 Safari Line/15.15.0")],
    ["Chrome", iphoneView("CriOS/142.0.7444.46 Mobile/15E148 Safari/604.1")],
  ].map(([name, userAgent]) => ({ name: `${name} (iPhone)`, userAgent, separator: "&" })),
];
const operaMini = "Opera/9.80 (Android; Opera Mini/36.2.2254/119.132; U; ko) Presto/2.12.423 Version/12.16";

test.for([
  ...phones,
  ...insideApps,
  { name: "Opera Mini, which does not call itself mobile,", userAgent: operaMini, separator: "?" },
])("$name gets an sms: link in the form that its SMS app understands", async ({
  userAgent = "",
  separator,
}) => {
  const window = await createWindow(service, project);
  const { text } = await window.get("", { "user-agent": userAgent });
  const link = `sms:${window.to}${separator}body=${encodeURIComponent(window.text)}`;
  expect(link).toContain("%20");
  expect(link).not.toContain("+");
  expect(text).toContain(`href="${link.replaceAll("&", "&amp;")}"`);
  expect(text).not.toContain(`class="qr"`);
});

test("a number with # is shown as it is and encoded in the sms: link", async () => {
  const short = await service.createProject({ name: "Short" });
  await service.db.query("UPDATE destination_number SET number = '#1234' WHERE number = $1", [
    short.testNumber,
  ]);
  const window = await createWindow(service, short);
  const { text } = await window.get("", { "user-agent": iphone });
  expect(text).toContain(`href="sms:%231234&amp;body=`);
  expect(text).toContain(">#1234<");
});

test.for([
  { name: "a desktop", userAgent: "" },
  {
    name: "an Android tablet",
    userAgent:
      "Mozilla/5.0 (Linux; Android 13; SM-X700) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/150.0.0.0 Safari/537.36",
  },
  {
    name: "an iPad, which sends no SMS",
    userAgent:
      "Mozilla/5.0 (iPad; CPU OS 12_5_7 like Mac OS X) AppleWebKit/605.1.15 Version/12.1.2 Mobile/15E148 Safari/604.1",
  },
  {
    name: "an iPad that calls itself a Mac",
    userAgent:
      "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15",
  },
  {
    name: "an iPad on which Instagram runs as on an iPhone",
    userAgent: iphoneView(
      "Mobile/15E148 Instagram 301.0.0.29.78 (iPad13,1; iOS 17_5; ko_KR; ko; scale=2.00; 750x1334)",
    ),
  },
  {
    name: "an iPad in Facebook",
    userAgent:
      "Mozilla/5.0 (iPad; CPU OS 12_5_7 like Mac OS X) AppleWebKit/605.1.15 Mobile/16H81 [FBAN/FBIOS;FBDV/iPad4,1;FBMD/iPad;FBSN/iPhone OS;FBID/tablet]",
  },
])("$name gets the window's URL with via=qr as a QR code", async ({ userAgent }) => {
  const window = await createWindow(service, project);
  const { text } = await window.get("", { "user-agent": userAgent });
  expect(scan(text)).toBe(`${window.url}?via=qr`);
  // Hidden, since it may be a phone in desktop mode: then the script shows the link.
  expect(text).toMatch(/data-on-this-device hidden>[^<]*<a href="sms:/);
  expect(text.match(/href="sms:/g)).toHaveLength(1);
});

test("number and text are shown, and the project's name and template are escaped", async () => {
  const window = await createWindow(service, project);
  for (const userAgent of ["", android, iphone]) {
    const { text } = await window.get("", { "user-agent": userAgent });
    expect(text).toContain(`>${window.to}<`);
    expect(text).toContain(`>${window.text.replace("&", "&amp;")}<`);
    expect(text).toContain("&lt;b&gt;&quot;Shop&quot; &amp; {name} $&amp;$&#39;에서 요청했어요");
    expect(text).not.toContain("<b>");
    expect(text).toContain("010으로 시작하는 번호의 휴대전화");
  }
});

test("a browser that translates the page leaves the number and the text as they have to be sent", async () => {
  const window = await createWindow(service, project);
  const { text } = await window.get();
  const values = text.match(/<span class="value"[^>]*>/g) ?? [];
  expect(values).toHaveLength(2);
  for (const value of values) expect(value).toContain(' translate="no"');
});

test("the text to be sent is marked as Korean if it is, also in the English page", async () => {
  const english = await service.createProject({ smsTemplate: "[Shop] code {code}, do not share" });
  const marked = async (window: { get(path: string): Promise<{ text: string }> }) => {
    const { text } = await window.get("?lang=en");
    return [/<span class="value"[^>]* lang="ko"/, /<textarea[^>]* lang="ko"/].map((place) =>
      place.test(text),
    );
  };
  expect(await marked(await createWindow(service, project))).toEqual([true, true]);
  expect(await marked(await createWindow(service, english))).toEqual([false, false]);
});

test.for(phones)("on $name the page stops the browser from turning numbers into telephone links", async ({
  userAgent,
}) => {
  const window = await createWindow(service, project);
  const { text } = await window.get("", { "user-agent": userAgent });
  const [head = ""] = text.split("</head>");
  expect(head).toContain('<meta name="format-detection" content="telephone=no">');
  expect(text).not.toContain("tel:");
});

test.for(
  phones,
)("on $name, a page opened by the QR code asks for confirmation before it shows number and text", async ({
  userAgent,
}) => {
  const window = await createWindow(service, project, {}, "live");
  const asked = await window.get("?via=qr", { "user-agent": userAgent });
  expect(asked.text).toContain("직접 시작하셨나요?");
  expect(asked.text).not.toContain(window.to);
  expect(asked.text).not.toContain("보내세요</span>");
  const [, next = ""] = /class="button" href="([^"]+)">네/.exec(asked.text) ?? [];
  const confirmed = await window.get(next.replaceAll("&amp;", "&"), { "user-agent": userAgent });
  expect(confirmed.text).toContain(`href="sms:${window.to}`);
});

test("in the test environment, too, the page does not contain the code before the person has confirmed", async () => {
  const window = await createWindow(service, project);
  const asked = await window.get("?via=qr");
  expect(asked.text).toContain('<a class="button" href="?via=qr&amp;started=yes">');
  expect(asked.text).toContain('<a href="?via=qr&amp;lang=en" lang="en"');
  expect(asked.text).toContain("직접 시작하셨나요?");
  expect(asked.text).not.toContain(codeIn(window.text));
  expect(asked.text).not.toContain("<aside");
  const confirmed = await window.get("?via=qr&started=yes");
  expect(confirmed.text).toContain(codeIn(window.text));
  expect(confirmed.text).toContain("<aside");
});

test("a page opened by the QR code shows no QR code, even to a desktop browser", async () => {
  const window = await createWindow(service, project, {}, "live");
  expect((await window.get()).text).toContain("<figure>");
  const { text } = await window.get("?via=qr&started=yes");
  expect(text).not.toContain("<figure>");
  expect(text).toContain(`href="sms:${window.to}?&amp;body=`);
});

test("links and forms keep how the page was opened and the chosen language", async () => {
  const window = await createWindow(service, project);
  const { text } = await window.get("?via=qr&started=yes&lang=en", { "accept-language": "ko" });
  const opened = "?via=qr&amp;started=yes&amp;lang=";
  expect(text).toContain(`<a href="${opened}en">See the result</a>`);
  expect(text).toContain(`action="${window.token}/messages${opened}en"`);
  expect(text).toContain(`<a href="${opened}ko" lang="ko" hreflang="ko">한국어</a>`);
  expect((await window.get()).text).toContain('<a href="?">결과 보기</a>');
});

test.for([
  "ko",
  "en",
])("a page whose link asks for the language %s is in it, whatever the browser prefers", async (language) => {
  const preferred = language === "ko" ? "en" : "ko";
  const { text } = await getPage(`${service.httpUrl}/v/none?lang=${language}`, {
    "accept-language": preferred,
  });
  expect(text).toContain(`<html lang="${language}">`);
});

test("without JavaScript the page shows the expiry in Korean time", async () => {
  const window = await createWindow(service, project);
  const { rows } = await service.db.query(
    "SELECT to_char(expires_at AT TIME ZONE 'Asia/Seoul', 'FMHH12:MI AM') AS time FROM verification WHERE sms_text = $1",
    [window.text],
  );
  const { text } = await window.get("?lang=en");
  expect(text.replaceAll("\u202f", " ")).toContain(`Until ${rows[0].time}, Korean time`);
});

test("at the end only a page opened by the QR code says to continue on the first device", async () => {
  const window = await createWindow(service, project);
  await window.cancel();
  const goOn = "<p>처음 시작한 기기에서 계속하세요";
  // Where it is not the way to continue, the way back is no button.
  for (const [query, says, way] of [
    ["?via=qr", true, "<a data-return"],
    ["", false, '<a class="button" data-return'],
  ] as const) {
    const { text } = await window.get(query);
    expect(text.includes(goOn)).toBe(says);
    expect(text).toContain(way);
  }
});

test("HEAD on a window's status is answered with 200", async () => {
  const window = await createWindow(service, project);
  const answer = await fetch(`${window.url}/status`, { method: "HEAD" });
  expect(answer.status).toBe(200);
  expect(await answer.text()).toBe("");
});

test("the warning comes before the SMS link", async () => {
  const window = await createWindow(service, project);
  const { text } = await window.get("", { "user-agent": android });
  expect(text.indexOf("방금 직접 시작한 경우에만")).toBeGreaterThan(0);
  expect(text.indexOf("에서 요청했어요")).toBeLessThan(text.indexOf("방금 직접 시작한 경우에만"));
  expect(text.indexOf("방금 직접 시작한 경우에만")).toBeLessThan(text.indexOf('href="sms:'));
});

test.for([
  { header: "ko-KR,ko;q=0.9,en;q=0.8", language: "ko" },
  { header: "en-US,en;q=0.9,ko;q=0.8", language: "en" },
  { header: "en;q=0.2, ko;q=0.7", language: "ko" },
  { header: "ja,fr;q=0.5", language: "en" },
  { header: "ja,ko;q=0.1", language: "ko" },
  { header: "ko;q=0,en", language: "en" },
  { header: "en;q=0", language: "ko" },
  { header: "ko;q=0", language: "en" },
  { header: "*, ko;q=0", language: "en" },
  { header: "*", language: "ko" },
  { header: "", language: "ko" },
  { header: ";;q=,,=", language: "ko" },
  { header: "EN", language: "en" },
  { header: "en,ko", language: "en" },
  { header: "*;q=0.5,en;q=0.1", language: "en" },
  { header: "ko-KP;q=0,ko;q=0.5", language: "ko" },
])("Accept-Language $header is answered in $language", async ({ header, language }) => {
  const { text } = await getPage(`${service.httpUrl}/v/none`, { "accept-language": header });
  expect(text).toContain(`<html lang="${language}">`);
});

test("the page loads nothing from other origins, has no inline code, and is not cached or sent as a referrer", async () => {
  const window = await createWindow(service, project);
  const { status, headers, text } = await window.get();
  expect(status).toBe(200);
  const policy = headers.get("content-security-policy") ?? "";
  expect(policy).toContain("default-src 'none'");
  for (const directive of ["frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"]) {
    expect(policy).toContain(directive);
  }
  expect(policy).not.toMatch(/unsafe|nonce|sha256|data:|\*|https?:/);
  expect(headers.get("cache-control")).toBe("no-store");
  expect(Object.fromEntries(headers)).toMatchObject({
    "referrer-policy": "no-referrer",
    "x-robots-tag": "noindex",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    vary: "Accept-Language, User-Agent",
    link: expect.stringMatching(/^<\/v\/assets\/window-[0-9a-f]{16}\.css>; rel=preload; as=style$/),
  });
  expect(headers.get("cross-origin-opener-policy")).toBe("unsafe-none");
  expect(headers.get("x-request-id")).toMatch(/^req_/);
  expect(headers.get("set-cookie")).toBeNull();
  expect(text).not.toMatch(/<style|style=|<script(?! type="module" src)|\son\w+=|https?:\/\//);
});

test("the stylesheet also has what Safari calls otherwise, or has learnt late", async () => {
  const page = await getPage(`${service.httpUrl}/v/none`);
  const [path = ""] = /\/v\/assets\/window-[0-9a-f]{16}\.css/.exec(page.text) ?? [];
  const style = (await getPage(service.httpUrl + path)).text;
  expect(style).toMatch(/-webkit-user-select: all;\s+user-select: all;/);
  expect(style).toMatch(/overflow-wrap: break-word;\s+overflow-wrap: anywhere;/);
});

test("the page and its files, gzipped, are smaller than 40 KiB together", async () => {
  const window = await createWindow(service, project, { mode: "match", expected_phone: newPhone() });
  const page = await window.get();
  const files = [...page.text.matchAll(/(?:href|src)="(\/v\/assets\/[^"]+)"/g)].map(([, file]) => file);
  expect(files).toHaveLength(3);
  let bytes = Buffer.byteLength(page.text);
  for (const file of files) {
    const response = await fetch(new URL(file ?? "", window.url), { headers: { "accept-encoding": "gzip" } });
    expect(response.headers.get("cache-control")).toContain("immutable");
    expect(response.headers.get("x-content-type-options")).toBe("nosniff");
    bytes += Number(response.headers.get("content-length"));
  }
  expect(bytes).toBeLessThan(40 * 1024);
});

test.for([
  { accepted: "gzip, deflate, br", encoding: "br" },
  { accepted: "gzip", encoding: "gzip" },
  { accepted: "br;q=0, gzip;q=0.5", encoding: "gzip" },
  { accepted: "gzip; q=0.0", encoding: null },
  { accepted: "identity", encoding: null },
  { accepted: "brotli, gzip2", encoding: null },
])("with Accept-Encoding $accepted an asset is sent as $encoding, with the same content", async (row) => {
  const page = await getPage(`${service.httpUrl}/v/none`);
  const [style = ""] = /\/v\/assets\/window-[0-9a-f]{16}\.css/.exec(page.text) ?? [];
  const asked = await fetch(service.httpUrl + style, { headers: { "accept-encoding": row.accepted } });
  expect(asked.headers.get("content-encoding")).toBe(row.encoding);
  expect(asked.headers.get("vary")).toBe("Accept-Encoding");
  const digest = hash("sha256", Buffer.from(await asked.arrayBuffer()), "hex").slice(0, 16);
  expect(style).toContain(digest);
});

test("of the languages, types and encodings that a request lists, 32 are read: none does with more, and reading thousands takes time", async () => {
  const { text } = await getPage(`${service.httpUrl}/v/none`);
  const [style = ""] = /\/v\/assets\/window-[0-9a-f]{16}\.css/.exec(text) ?? [];
  const after = async (others: number) => {
    const last = (member: string) => `${"x;q=0.1,".repeat(others)}${member}`;
    const page = await getPage(`${service.httpUrl}/v/none`, { "accept-language": last("ko") });
    const program = await getPage(`${service.httpUrl}/v/none`, { accept: last("application/json") });
    const asset = await fetch(service.httpUrl + style, { headers: { "accept-encoding": last("gzip") } });
    return [
      /<html lang="(..)"/.exec(page.text)?.[1],
      program.headers.get("content-type"),
      asset.headers.get("content-encoding"),
    ];
  };
  expect(await after(31)).toEqual(["ko", "application/json; charset=utf-8", "gzip"]);
  expect(await after(32)).toEqual(["en", "text/html; charset=utf-8", null]);
  expect(await after(1_900)).toEqual(["en", "text/html; charset=utf-8", null]);
});

test("an asset of another version is answered with this version's, not cached; unknown assets with 404", async () => {
  const page = await getPage(`${service.httpUrl}/v/none`);
  const [style = ""] = /window-[0-9a-f]{16}\.css/.exec(page.text) ?? [];
  const other = await getPage(`${service.httpUrl}/v/assets/${style.replace(/[0-9a-f]{16}/, "0".repeat(16))}`);
  expect(other.status).toBe(200);
  expect(other.headers.get("cache-control")).toBe("no-store");
  for (const file of ["window.css", "..%2fwindow.ts", "none-0000000000000000.css"]) {
    expect((await getPage(`${service.httpUrl}/v/assets/${file}`)).status).toBe(404);
  }
});

test("wrong, outdated and malformed tokens get the same friendly 404 page, which reveals nothing", async () => {
  const [live, other, old] = [
    await createWindow(service, project),
    await createWindow(service, project),
    await createWindow(service, project),
  ];
  await old.cancel();
  await service.db.query(
    `UPDATE event SET occurred_at = now() - interval '24 hours' WHERE verification_id =
      (SELECT id FROM verification ORDER BY id DESC LIMIT 1)`,
  );
  const addresses = [
    old.token,
    "A".repeat(22),
    live.token.slice(0, 11) + other.token.slice(11),
    `${live.token.slice(0, -1)}${live.token.endsWith("A") ? "B" : "A"}`,
    live.token.slice(1),
    live.token.slice(0, -1),
    `${live.token}A`,
    live.id.slice(4),
    live.id.slice(4) + live.token,
    "x",
    "%00",
    `${old.token}/nothing`,
    "a/b/c",
    encodeURIComponent(old.id),
  ];
  const pages = await Promise.all(addresses.map((address) => getPage(`${service.httpUrl}/v/${address}`)));
  expect(pages.map(({ status }) => status)).toEqual(addresses.map(() => 404));
  expect(new Set(pages.map(({ text }) => text)).size).toBe(1);
  expect(pages[0]?.text).toContain("열 수 없는 페이지예요");
  expect(pages[0]?.headers.get("content-security-policy")).toContain("default-src 'none'");
  expect(pages[0]?.headers.get("retry-after")).toBeNull();
  for (const { text } of pages) expect(text).not.toContain("Shop");
  // Opening it again leads to the same page.
  expect(pages[0]?.text).not.toContain("다시 열기");
  for (const path of ["/events", "/status"]) expect((await old.get(path)).status).toBe(404);
  expect((await old.play({})).status).toBe(404);
  expect((await live.get("")).status).toBe(200);
});

test("a token issued by 0.1.0 opens its window and no other", async () => {
  const [former, other] = [await createWindow(service, project), await createWindow(service, project)];
  const token = randomBytes(16).toString("base64url");
  const address = `${service.httpUrl}/v/${token}`;
  expect((await getPage(address)).status).toBe(404);
  await service.db.query("UPDATE live_code SET window_digest = NULL WHERE verification_id = $1", [
    uuidOf(former.id),
  ]);
  await service.db.query(
    "INSERT INTO window_token (digest, verification_id, delete_after) VALUES (sha256($1), $2, now() + interval '1 day')",
    [token, uuidOf(former.id)],
  );
  const page = await getPage(address);
  expect(page.status).toBe(200);
  expect(page.text).toContain(codeIn(former.text));
  expect((await getPage(former.url)).status).toBe(404);
  expect((await other.get()).text).toContain(codeIn(other.text));

  await former.cancel();
  await service.db.query(
    "UPDATE event SET occurred_at = now() - interval '24 hours' WHERE verification_id = $1",
    [uuidOf(former.id)],
  );
  expect((await getPage(address)).status).toBe(404);
});

test("a URL does not open the window of the verification that gets its code next, from this version or 0.1.0", async () => {
  const [first, second] = [
    await createWindow(service, project, { mode: "match", expected_phone: newPhone() }),
    await createWindow(service, project),
  ];
  const codeOf = async (id: string) => {
    const { rows } = await service.db.query("SELECT code FROM live_code WHERE verification_id = $1", [
      uuidOf(id),
    ]);
    return rows[0].code;
  };
  const code = await codeOf(first.id);
  // As 0.1.0 reuses a code whose quarantine is over.
  await service.db.query("DELETE FROM live_code WHERE verification_id = $1", [uuidOf(second.id)]);
  await service.db.query(
    "UPDATE live_code SET code_format = 'numeric', verification_id = $1, expires_at = now() + interval '1 hour' WHERE code = $2",
    [uuidOf(second.id), code],
  );
  expect(await codeOf(second.id)).toBe(code);
  const { rows } = await service.db.query("SELECT expected_phone FROM live_code WHERE code = $1", [code]);
  expect(rows).toEqual([{ expected_phone: null }]);
  for (const { url } of [first, second]) expect((await getPage(url)).status).toBe(404);
  // As this version reuses it.
  const digest = hash("sha256", second.token, "hex");
  await service.db.query(
    "UPDATE live_code SET verification_id = $1, window_digest = decode($2, 'hex') WHERE code = $3",
    [uuidOf(second.id), digest, code],
  );
  expect((await second.get()).text).toContain(codeIn(second.text));
  expect((await getPage(first.url)).status).toBe(404);
});

test("of two hints in the same millisecond the later one is a new state, too", async () => {
  const plain = await startTestService({ ROLES: "api" });
  await installClock(plain.db);
  const clocked = await plain.startAnother({ DATABASE_URL: byTheClock(plain.databaseUrl), ROLES: "api" });
  await stopClock(plain.db, new Date());
  const [phone, stranger] = [newPhone(), newPhone()];
  const window = await createWindow(clocked, await plain.createProject(), {
    mode: "match",
    expected_phone: phone,
  });
  const states: WindowState[] = [];
  for (const message of [{ from: stranger }, { from: phone, text: `[Web발신] ${window.text}` }]) {
    await window.receipt(message);
    states.push(JSON.parse((await window.get("/status")).text));
  }
  expect(states.map(({ hint }) => hint)).toEqual(["another_number", "web_sent"]);
  expect(states[1]?.version).not.toBe(states[0]?.version);
});

test("the token works until 24 hours after the end, however the verification ended", async () => {
  await installClock(service.db);
  const clocked = await service.startAnother({ DATABASE_URL: byTheClock(service.databaseUrl), ROLES: "api" });
  const hour = 3_600_000;
  await stopClock(service.db, new Date());
  try {
    const cancelled = await createWindow(clocked, project);
    const verified = await createWindow(clocked, project);
    const expired = await createWindow(clocked, project);
    await cancelled.cancel();
    await verified.play({ from: newPhone() });
    await moveClock(service.db, 24 * hour - 1_000);
    const { text } = await cancelled.get();
    expect(text).toContain("취소됐어요 · ");
    expect(text).toContain("&#39;에서 인증을 취소했어요. 다시 하려면 &lt;b&gt;");
    for (const window of [cancelled, verified, expired]) expect((await window.get()).status).toBe(200);
    await moveClock(service.db, 2_000);
    expect((await cancelled.get()).status).toBe(404);
    expect((await verified.get()).status).toBe(404);
    expect((await expired.get()).text).toContain("&quot;status&quot;:&quot;expired&quot;");
    await moveClock(service.db, 600_000);
    expect((await expired.get()).status).toBe(404);
  } finally {
    await resetClock(service.db);
    await clocked.close();
  }
});

const endings = [
  {
    status: "verified",
    end: (w: Awaited<ReturnType<typeof createWindow>>) => w.play({ from: "010-1234-5678" }),
  },
  { status: "cancelled", end: (w: Awaited<ReturnType<typeof createWindow>>) => w.cancel() },
  { status: "expired", end: (w: Awaited<ReturnType<typeof createWindow>>) => letExpire(service.db, w.id) },
];

test.for(
  endings,
)("$status is shown without JavaScript, with the link back and no longer with number and text", async ({
  status,
  end,
}) => {
  const window = await createWindow(service, project, { return_url: returnUrl, state: "a b&c" });
  const toSend = [window.to, codeIn(window.text)];
  /** The page without the panel of the test environment. */
  const own = (text: string) => text.split("<aside")[0] ?? "";
  const pending = (await window.get()).text;
  expect(pending).toContain('data-status="verified"');
  for (const value of toSend) expect(own(pending)).toContain(value);
  expect(pending).toContain("<section data-after hidden>");
  await end(window);
  const { text } = await window.get();
  for (const value of toSend) expect(own(text)).not.toContain(value);
  expect(text).toContain("<section data-after>");
  const shown = [...text.matchAll(/<section data-status="(\w+)"[^>]*?( hidden)?>/g)].filter(
    ([, , hidden]) => !hidden,
  );
  expect(shown.map(([, name]) => name)).toEqual([status]);
  const back = `https://shop.example/back?order=7&a=%20b&verification_id=${window.id}&status=${status}&state=a%20b%26c#top#2`;
  expect(text).toContain(`href="${back.replaceAll("&", "&amp;")}"`);
  expect(text.includes("010-****-5678")).toBe(status === "verified");
  expect(own(text)).not.toContain("1234-5678");
});

test.for([
  { registered: "/back", result: "/back?" },
  { registered: "/back?", result: "/back?" },
  { registered: "/back?order=7", result: "/back?order=7&" },
  { registered: "/back?order=7&", result: "/back?order=7&" },
])("the result is appended to the return URL $registered", async ({ registered, result }) => {
  const url = `https://shop.example${registered}`;
  const shop = await service.createProject({ returnUrl: url });
  const window = await createWindow(service, shop, { return_url: url });
  await window.cancel();
  const state = JSON.parse((await window.get("/status")).text);
  expect(state.returnUrl).toBe(
    `https://shop.example${result}verification_id=${window.id}&status=cancelled&state=`,
  );
});

test("an overdue verification is expired, with its event, before the window says that it has expired", async () => {
  const window = await createWindow(service, project);
  await letExpire(service.db, window.id);
  expect((await window.get("/status")).text).toContain('"status":"expired"');
  const { rows } = await service.db.query(
    "SELECT v.status, e.type FROM verification v JOIN event e ON e.verification_id = v.id ORDER BY v.id DESC LIMIT 1",
  );
  expect(rows).toEqual([{ status: "expired", type: "verification.expired" }]);
});

test("before the end neither the page nor the status contains the expected phone or the return URL", async () => {
  const expected = newPhone();
  const request = {
    mode: "match",
    expected_phone: expected,
    return_url: returnUrl,
    parent_origin: "https://shop.example",
  };
  const window = await createWindow(service, project, request);
  for (const path of ["", "/status"]) {
    const { text } = await window.get(path);
    expect(text).not.toContain(expected.slice(3));
    expect(text).not.toContain("shop.example");
  }
});

test("the token is in no log line, even at level trace", async () => {
  const lines: string[] = [];
  let token = "";
  const settings = parseConfig({
    PORT: "0",
    GRPC_PORT: "0",
    OPS_PORT: "0",
    DATABASE_URL: service.databaseUrl,
    PHONEPROOF_ADMIN_TOKEN: service.adminToken,
  });
  const logging = await startService(
    settings,
    pino({ level: "trace" }, { write: (line) => lines.push(line) }),
  );
  try {
    const window = await createWindow(service, project);
    token = window.token;
    const url = `${logging.addresses.http}/v/${token}`;
    const stream = await openStream(url);
    await stream.next();
    for (const path of ["", "?via=qr", "/status", "/nothing", "/%ff"]) await getPage(url + path);
    await fetch(`${url}/messages`, {
      method: "POST",
      body: new URLSearchParams({ from: newPhone(), text: window.text }),
    });
    await expect
      .poll(() => lines.filter((line) => line.includes('"msg":"request"')).length)
      .toBeGreaterThan(6);
  } finally {
    await logging.close();
  }
  expect(lines.join("")).toContain('"route":"/v/:token/events"');
  expect(lines.filter((line) => line.includes(token))).toEqual([]);
});

/** Decodes the page's QR code: draws its path with four pixels per module. */
function scan(page: string): string | undefined {
  const size = Number(/viewBox="0 0 (\d+)/.exec(page)?.[1]);
  const scale = 4;
  const width = size * scale;
  const pixels = new Uint8ClampedArray(width * width * 4).fill(255);
  const [, dark = ""] = /fill="#000" d="([^"]+)"/.exec(page) ?? [];
  for (const [, x, y, length] of dark.matchAll(/M(\d+) (\d+)h(\d+)v1/g)) {
    for (let row = Number(y) * scale; row < (Number(y) + 1) * scale; row++) {
      for (let column = Number(x) * scale; column < (Number(x) + Number(length)) * scale; column++) {
        pixels.fill(0, (row * width + column) * 4, (row * width + column) * 4 + 3);
      }
    }
  }
  return jsQr.default(pixels, width, width)?.data;
}

test("a URL with a trailing slash redirects to the window, and HEAD is answered", async () => {
  const window = await createWindow(service, project);
  const slashed = await fetch(`${window.url}/?lang=en`, { redirect: "manual" });
  expect([slashed.status, slashed.headers.get("location")]).toEqual([308, `${window.url}?lang=en`]);
  const odd = await fetch(`${service.httpUrl}/v/%0d%0a%3f/`, { redirect: "manual" });
  expect([odd.status, new URL(odd.headers.get("location") ?? "").pathname]).toEqual([308, "/v/%0D%0A%3F"]);
  const head = await fetch(window.url, { method: "HEAD" });
  expect([head.status, await head.text()]).toEqual([200, ""]);
});

test("the stylesheet of a refusal page can be loaded from every path that has one", async () => {
  let pages = 0;
  for (const path of ["/v", "/v/", "/v/nothing", "/v/nothing/", "/v/nothing/at/all"]) {
    const { text } = await getPage(`${service.httpUrl}${path}`);
    if (!text.startsWith("<!doctype html>")) continue;
    pages += 1;
    const [, style = ""] = /href="([^"]+\.css)"/.exec(text) ?? [];
    expect((await fetch(new URL(style, `${service.httpUrl}${path}`))).headers.get("content-type")).toMatch(
      /^text\/css/,
    );
  }
  expect(pages).toBeGreaterThan(0);
});
