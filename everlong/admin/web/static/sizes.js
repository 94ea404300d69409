// Formats sizes for people: `512 B`, `1.2 MiB`.
export function formatSize(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  let value = bytes;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= 1024;
    if (value < 1024 || unit === "TiB") return `${value.toFixed(1)} ${unit}`;
  }
}
