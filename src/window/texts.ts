/** All texts of the window, in both languages. `{name}` is the merchant's name. */

import type { InboundMessageOutcome } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import type { WindowState } from "./browser/state.ts";
import type { Language } from "./visitor.ts";

export type OutcomeName = keyof typeof InboundMessageOutcome;

export interface Texts {
  readonly pageTitle: string;
  readonly asker: string;
  readonly heading: string;
  readonly warning: string;
  readonly warningMore: string;
  readonly openSmsApp: string;
  readonly filledIn: string;
  readonly byHand: string;
  readonly scan: string;
  readonly scanMore: string;
  readonly onThisDevice: string;
  readonly qrLabel: string;
  readonly number: string;
  readonly text: string;
  readonly copy: string;
  readonly copyNumber: string;
  readonly copyText: string;
  readonly copied: string;
  readonly notCopied: string;
  readonly timeLeft: string;
  /** For those who do not see the countdown. */
  readonly lastMinute: string;
  readonly until: string;
  readonly waiting: string;
  readonly reconnecting: string;
  readonly timeProbablyUp: string;
  readonly whichPhones: string;
  readonly price: string;
  /** Shown to whoever has waited for a while without a hint, also if nothing was sent. */
  readonly advice: string;
  readonly hints: Readonly<Record<NonNullable<WindowState["hint"]>, string>>;
  readonly withoutScript: string;
  readonly refresh: string;
  readonly gateHeading: string;
  readonly gateYes: string;
  readonly gateNo: string;
  readonly verified: string;
  readonly verifiedMore: string;
  readonly expired: string;
  readonly expiredMore: string;
  readonly cancelled: string;
  readonly cancelledMore: string;
  readonly returning: string;
  readonly returnNow: string;
  readonly goOnThere: string;
  readonly mayClose: string;
  readonly close: string;
  readonly notFound: string;
  readonly notFoundMore: string;
  readonly tooMany: string;
  readonly tooManyMore: string;
  readonly unavailable: string;
  readonly unavailableMore: string;
  readonly openAgain: string;
  readonly otherLanguage: string;
  readonly play: {
    readonly heading: string;
    readonly more: string;
    readonly sender: string;
    readonly senderMore: string;
    readonly carrier: string;
    readonly unknownCarrier: string;
    readonly text: string;
    readonly presets: string;
    readonly asAsked: string;
    readonly webSent: string;
    readonly twoCodes: string;
    readonly withoutCode: string;
    readonly send: string;
    readonly failed: string;
    readonly duplicate: string;
    readonly outcomes: Readonly<Record<OutcomeName, string>>;
  };
}

const korean: Texts = {
  pageTitle: "휴대전화 인증",
  asker: "{name}에서 요청했어요",
  heading: "문자 한 통이면 인증이 끝나요",
  warning: "방금 직접 시작한 경우에만 보내세요.",
  warningMore: "다른 사람이 보내 달라고 했다면 사기일 수 있어요. 절대 보내지 마세요.",
  openSmsApp: "문자 앱 열기",
  filledIn: "번호와 내용이 채워져 있으니 보내기만 누르세요.",
  byHand: "직접 입력해도 돼요",
  scan: "휴대전화 카메라로 QR 코드를 비춰 주세요",
  scanMore: "휴대전화에 열리는 화면에서 문자를 보낼 수 있어요.",
  onThisDevice: "이 기기로 문자를 보낼 수 있다면:",
  qrLabel: "이 페이지를 휴대전화에서 여는 QR 코드",
  number: "받는 번호",
  text: "문자 내용",
  copy: "복사",
  copyNumber: "받는 번호 복사",
  copyText: "문자 내용 복사",
  copied: "복사됨",
  notCopied: "복사하지 못했어요. 선택된 글자를 직접 복사해 주세요.",
  timeLeft: "남은 시간",
  lastMinute: "1분이 채 남지 않았어요.",
  until: "한국 시각 {time}까지",
  waiting: "문자를 기다리고 있어요",
  reconnecting: "다시 연결하고 있어요. 보낸 문자는 그대로 처리돼요.",
  timeProbablyUp: "시간이 지난 것 같아요. 다시 연결되는 대로 결과를 알려 드릴게요.",
  whichPhones: "010으로 시작하는 번호의 휴대전화에서 보내 주세요.",
  price: "문자 요금은 이용 중인 요금제에 따라 부과돼요. 인증되면 문자를 보낸 번호가 {name}에 전달돼요.",
  advice:
    "문자를 보냈는데도 화면이 그대로라면, 보낸 문자의 받는 번호와 내용이 이 화면과 똑같은지, 전송에 실패하지 않았는지 확인해 주세요.",
  hints: {
    another_number:
      "다른 번호에서 보낸 문자가 왔어요. 인증하려는 번호에서 다시 보내 주세요. 번호가 두 개라면 보낼 번호를 골라 주세요.",
    web_sent: "웹에서 보낸 문자가 왔어요. 휴대전화의 문자 앱에서 직접 보내 주세요.",
    two_codes: "코드가 여러 개 든 문자가 왔어요. 아래 내용만 그대로 보내 주세요.",
    without_code: "코드가 없는 문자가 왔어요. 아래 내용을 고치지 말고 그대로 보내 주세요.",
    muted: "이 번호에서 틀린 문자가 너무 많이 왔어요. 10분쯤 기다렸다가 처음부터 다시 시작해 주세요.",
  },
  withoutScript: "이 페이지는 저절로 바뀌지 않아요. 문자를 보낸 뒤 눌러 주세요:",
  refresh: "결과 보기",
  gateHeading: "방금 {name}에서 휴대전화 인증을 직접 시작하셨나요?",
  gateYes: "네, 방금 제가 시작했어요",
  gateNo: "아니라면 이 페이지를 닫으세요. 문자를 보내지 않으면 아무 일도 일어나지 않아요.",
  verified: "인증됐어요",
  verifiedMore: "휴대전화 번호가 인증됐어요.",
  expired: "시간이 지났어요",
  expiredMore: "{name} 화면으로 돌아가 처음부터 다시 시작해 주세요. 지금 문자를 보내도 인증되지 않아요.",
  cancelled: "취소됐어요",
  cancelledMore: "{name}에서 인증을 취소했어요. 다시 하려면 {name} 화면에서 처음부터 시작해 주세요.",
  returning: "잠시 후 {name} 화면으로 돌아가요.",
  returnNow: "{name} 화면으로 가기",
  goOnThere: "처음 시작한 기기에서 계속하세요. 이 페이지는 닫아도 돼요.",
  mayClose: "이 창은 닫아도 돼요.",
  close: "창 닫기",
  notFound: "열 수 없는 페이지예요",
  notFoundMore: "주소가 잘못됐거나 너무 오래됐어요. 인증을 시작한 화면에서 다시 시작해 주세요.",
  tooMany: "잠시만 기다려 주세요",
  tooManyMore: "요청이 너무 많았어요. 1분 뒤에 다시 열어 주세요.",
  unavailable: "지금은 열 수 없어요",
  unavailableMore: "잠시 후 다시 열어 주세요. 이미 보낸 문자는 그대로 처리돼요.",
  openAgain: "다시 열기",
  otherLanguage: "English",
  play: {
    heading: "테스트 환경: 휴대전화 대신 보내기",
    more: "실제 문자는 보내지 않아요. 개발자가 모든 결과를 미리 볼 수 있는 곳이에요.",
    sender: "보내는 번호",
    senderMore: "match 모드에서는 expected_phone과 같으면 인증되고, 다르면 SENDER_MISMATCH가 돼요.",
    carrier: "통신사",
    unknownCarrier: "알 수 없음",
    text: "내용",
    presets: "내용 채우기",
    asAsked: "안내대로",
    webSent: "웹발신",
    twoCodes: "코드 여러 개",
    withoutCode: "코드 없이",
    send: "보내기",
    failed: "보내지 못했어요. 잠시 후 다시 해 보세요.",
    duplicate: "1분 안에 같은 문자가 있었어요. 처음 보낸 문자의 결과예요.",
    outcomes: {
      UNSPECIFIED: "결과를 알 수 없어요.",
      VERIFIED: "인증됐어요.",
      NO_MATCH: "받는 번호에서 쓰는 코드가 문자에 없었어요.",
      SENDER_MISMATCH: "코드는 맞지만 expected_phone이 아닌 번호예요. 인증은 계속 대기 중이에요.",
      LATE: "시간이 지난 뒤에 왔어요.",
      NOT_PENDING: "이미 인증됐거나 취소됐어요.",
      AMBIGUOUS: "코드가 여러 개여서 어느 것인지 알 수 없어요.",
      WEB_SENT: "웹에서 보낸 문자는 받지 않아요.",
      MUTED: "틀린 코드를 너무 많이 보낸 번호라 잠시 받지 않아요.",
      INVALID: "보내는 번호는 010 번호여야 하고, 내용은 1~2,000자여야 해요.",
    },
  },
};

const english: Texts = {
  pageTitle: "Phone check",
  asker: "Requested by {name}",
  heading: "One SMS and you are done",
  warning: "Send it only if you started this yourself, just now.",
  warningMore: "If somebody asked you to send it, it may be fraud. Don’t.",
  openSmsApp: "Open the SMS app",
  filledIn: "Number and text are filled in. Just press send.",
  byHand: "Or type it yourself",
  scan: "Scan the QR code with your phone’s camera",
  scanMore: "You send the SMS from the page that opens there.",
  onThisDevice: "If this device can send SMS:",
  qrLabel: "QR code that opens this page on your phone",
  number: "Send to",
  text: "Text",
  copy: "Copy",
  copyNumber: "Copy the number",
  copyText: "Copy the text",
  copied: "Copied",
  notCopied: "It could not be copied. It is selected: copy it by hand.",
  timeLeft: "Time left",
  lastMinute: "Less than a minute is left.",
  until: "Until {time}, Korean time",
  waiting: "Waiting for your SMS",
  reconnecting: "Reconnecting. An SMS you have sent still counts.",
  timeProbablyUp: "Time is probably up. You will see the result once the connection is back.",
  whichPhones: "Send it from a Korean mobile number, one that begins with 010.",
  price: "Your plan’s price for an SMS applies. Once verified, {name} learns the number you sent from.",
  advice:
    "Sent it, and nothing changes? Check in your messages that it did not fail, and that its number and text are exactly the ones shown here.",
  hints: {
    another_number:
      "A message came, but from another number. Send it again from the number to be verified: if your phone has two, choose that one.",
    web_sent: "A message came, but it was sent from the web. Send it from the SMS app of the phone itself.",
    two_codes: "A message came, but it held several codes. Send only the text below, as it is.",
    without_code: "A message of yours came, but without the code. Send the text below as it is.",
    muted: "Too many wrong messages came from this phone. Wait ten minutes, then start again.",
  },
  withoutScript: "This page does not change by itself. When you have sent the SMS:",
  refresh: "See the result",
  gateHeading: "Did you start this with {name} yourself, just now?",
  gateYes: "Yes, I started it just now",
  gateNo: "If not, close this page. As long as you send nothing, nothing happens.",
  verified: "Verified",
  verifiedMore: "Your phone number is verified.",
  expired: "Time is up",
  expiredMore: "Go back to {name} and start again. An SMS sent now verifies nothing.",
  cancelled: "Cancelled",
  cancelledMore: "{name} has cancelled this. To try again, start over there.",
  returning: "You return to {name} in a moment.",
  returnNow: "Go to {name}",
  goOnThere: "Continue on the device where you started. You may close this page.",
  mayClose: "You may close this window.",
  close: "Close this window",
  notFound: "This page can’t be opened",
  notFoundMore: "The address is wrong or too old. Start again where you came from.",
  tooMany: "One moment, please",
  tooManyMore: "There were too many requests. Open this page again in a minute.",
  unavailable: "Not available at the moment",
  unavailableMore: "Open this page again in a moment. An SMS you have sent still counts.",
  openAgain: "Open again",
  otherLanguage: "한국어",
  play: {
    heading: "Test environment: simulate the phone",
    more: "No real SMS is sent. Here a developer can walk through every outcome.",
    sender: "Sender",
    senderMore: "In mode match, expected_phone verifies; any other number is a SENDER_MISMATCH.",
    carrier: "Carrier",
    unknownCarrier: "Unknown",
    text: "Text",
    presets: "Fill in the text",
    asAsked: "As asked",
    webSent: "Web-sent",
    twoCodes: "Several codes",
    withoutCode: "Without code",
    send: "Send",
    failed: "It could not be sent. Try again in a moment.",
    duplicate: "The same was sent within the last minute; this is the first one’s outcome.",
    outcomes: {
      UNSPECIFIED: "The outcome is not known.",
      VERIFIED: "Verified.",
      NO_MATCH: "It contained no code known on this number.",
      SENDER_MISMATCH: "The code is right, but the sender is not expected_phone. Still pending.",
      LATE: "It arrived after the expiry.",
      NOT_PENDING: "The verification was already verified or cancelled.",
      AMBIGUOUS: "It contained several codes, so it is unclear which one is meant.",
      WEB_SENT: "Messages sent from the web are refused.",
      MUTED: "This sender sent too many wrong codes and is ignored for a while.",
      INVALID: "The sender must be a 010 mobile number, the text 1 to 2,000 characters.",
    },
  },
};

export const texts: Readonly<Record<Language, Texts>> = { ko: korean, en: english };

/** Inserts the merchant's name in one pass, so that a name containing `{name}` stays as it is. */
export function named(text: string, name: string): string {
  return text.replaceAll("{name}", () => name);
}
