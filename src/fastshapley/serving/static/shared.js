"use strict";

/* What the page of values and the page of addresses both do: make elements, and ask the server. */

const find = (id) => document.getElementById(id);

/* An element; children that are strings are text, never HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function say(message, kind = "") {
  find("status").textContent = message;
  find("status").className = kind;
}

let token = "";

/* The server's answer, whatever its status; paths are relative, as the server may be behind another one. */
function request(path, options = {}) {
  const bytes = new TextEncoder().encode(`Bearer ${token}`);  // a header's letters are bytes
  const headers = { ...options.headers, ...(token && { Authorization: String.fromCharCode(...bytes) }) };
  return fetch(path, { ...options, headers });
}

/* Ask for the token; of one that was given already, say that it is not the right one. */
function signIn() {
  find("sign-in").hidden = false;
  find("token").focus();
  say(token ? "The token was not accepted." : "", "error");
}

function onSignIn(then) {
  find("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    token = find("token").value.trim();
    then();
  });
}
