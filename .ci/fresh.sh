# To be sourced from the checkout: a small Debian as a newcomer has it. A fresh clone, an empty home, no environment but
# where packages come from, the distribution's own python3, git, make and what every Debian has, and no root.
# `as_newcomer COMMAND...` runs in the clone.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin" "$folder/home"
git clone --quiet --no-hardlinks . "$folder/home/ballast"

python=$(basename "$(readlink -f /usr/bin/python3)")
packages=$(dpkg-query -W -f '${Priority} ${Package}\n' | sed -n 's/^required //p')
for program in $(dpkg -L $packages git make python3-minimal "$python-minimal" | grep -E '^(/usr)?/s?bin/[^/]+$'); do
  ln -sf "$program" "$folder/bin/"
done

mapfile -t environment < <(env | grep -E '^(CI|PIP_.*|UV_.*|SSL_CERT_.*|(https?|no)_proxy|(HTTPS?|NO)_PROXY)=')
environment+=("HOME=$folder/home" "PATH=$folder/bin")
user=()
if [ "$(id -u)" = 0 ]; then
  chmod 755 "$folder"
  chown -R nobody:nogroup "$folder/home"
  user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
fi

as_newcomer() { (cd "$folder/home/ballast" && env -i "${environment[@]}" "${user[@]}" "$@"); }
