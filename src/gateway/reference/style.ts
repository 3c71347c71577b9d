/** What the pages look like, in light and in dark. */
export const style = `:root{color-scheme:light dark;--text:#1c1c1e;--quiet:#56565b;--line:#d5d5da;--back:#fff;--code:#f3f3f5;--link:#0a58ca}
@media(prefers-color-scheme:dark){:root{--text:#f0f0f2;--quiet:#b3b3ba;--line:#3c3c42;--back:#161618;--code:#232327;--link:#8ab8ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.6 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.8rem;line-height:1.25}
h2{margin-top:3rem;border-top:1px solid var(--line);padding-top:1.5rem}
a{color:var(--link)}
code{font:.875em/1.5 ui-monospace,monospace;background:var(--code);padding:.1em .3em;border-radius:.25em}
pre{background:var(--code);padding:1rem;border-radius:.5rem;white-space:pre-wrap;overflow-wrap:anywhere}
pre code{padding:0;background:none}
.wide{overflow-x:auto}
.wide+.wide{margin-top:2rem}
table{border-collapse:collapse;width:100%;font-size:.9375rem}
th,td{text-align:left;vertical-align:top;padding:.5rem .75rem .5rem 0;border-bottom:1px solid var(--line)}
thead th{color:var(--quiet);font-weight:600;white-space:nowrap}
th[scope=row]{font-weight:400}
td:last-child{overflow-wrap:anywhere}
:lang(ko){word-break:keep-all}
.language{float:right;margin:.5rem 0}
`;
