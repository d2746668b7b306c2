"use strict";

/* Shared by both pages: make elements, and send requests to the server. */

const find = (id) => document.getElementById(id);

/* Makes an element. Children that are strings become text, never HTML. */
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

/* Returns the server's answer, whatever its status. Paths are relative because the server may be behind a proxy. */
function request(path, options = {}) {
  const bytes = new TextEncoder().encode(`Bearer ${token}`);  // Headers hold bytes.
  const headers = { ...options.headers, ...(token && { Authorization: String.fromCharCode(...bytes) }) };
  return fetch(path, { ...options, headers });
}

/* Asks for the token, and says so if a token was rejected before. */
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
