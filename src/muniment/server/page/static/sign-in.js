// Signs in with the code behind `#`, which leaves the address before anything else happens.
function signIn() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.getElementById("sign-in");
  form.elements.code.value = code;
  form.requestSubmit();
}

signIn();
addEventListener("hashchange", signIn); // The address that was told may differ from where this is by the code alone.
